"""Settings to rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unspool.errors import ParameterError
from unspool.sampling.chain import Chain
from unspool.sampling.plan import RuleKind
from unspool.sampling.presets import DEFAULT_ORDER
from unspool.sampling.rules import (
    BadWords,
    Custom,
    Dry,
    DynamicTemperature,
    LogitBias,
    Mirostat,
    NoRepeatNgram,
    RepetitionPenalty,
    ZeroTemperature,
)
from unspool.sampling.settings import MAKERS, RuleSettings, compile_chain

ALL_ON: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "dry_multiplier": 0.8,
    "no_repeat_ngram_size": 3,
    "bad_words": ((5,),),
    "logit_bias": ((4, 1.0),),
    "allowed_token_ids": (1, 2, 3),
    "min_tokens": 4,
    "end_ids": (2,),
    "logits_processors": (lambda ids, logits: logits,),
    "temperature": 0.5,
    "top_n_sigma": 1.5,
    "min_p": 0.1,
    "top_k": 40,
    "top_p": 0.9,
    "typical_p": 0.9,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
    "top_a": 0.1,
    "tail_free": 0.9,
    "top_h": 0.5,
    "p_less": True,
    "xtc_probability": 0.5,
}


def compiled(**settings: Any) -> Chain:
    return compile_chain(RuleSettings(**settings))


def entries(chain: Chain) -> list[tuple[int, tuple[float, ...]]]:
    return list(zip(chain.kinds.tolist(), map(tuple, chain.values.tolist()), strict=True))


def test_the_default_order_is_the_documented_one() -> None:
    chain = compiled(top_p=0.9, top_k=40, min_p=0.1, temperature=0.5, repetition_penalty=1.2)
    assert entries(chain) == [
        (RuleKind.REPETITION_PENALTY, (1.2, 0, 0)),
        (RuleKind.TEMPERATURE, (0.5, 0, 0)),
        (RuleKind.MIN_P, (0.1, 0, 0)),
        (RuleKind.TOP_K, (40, 0, 0)),
        (RuleKind.TOP_P, (0.9, 0, 0)),
    ]


def test_every_rule_has_its_setting_its_place_and_its_name() -> None:
    chain = compiled(**ALL_ON, mirostat=2)
    names = [rule.name for rule in chain.named]
    assert names == [name for name in DEFAULT_ORDER if name != "adaptive_p"]
    assert set(DEFAULT_ORDER) == set(MAKERS)
    closed = compiled(**ALL_ON, adaptive_target=0.5)
    assert [rule.name for rule in closed.rules][-2:] == ["witness", "adaptive_p"]


def test_the_order_is_the_callers() -> None:
    chain = compiled(min_p=0.1, temperature=0.5, order=("min_p", "temperature"))
    assert entries(chain) == [(RuleKind.MIN_P, (0.1, 0, 0)), (RuleKind.TEMPERATURE, (0.5, 0, 0))]


def test_rules_that_are_off_compile_to_nothing() -> None:
    off = compiled(
        repetition_penalty=1,
        frequency_penalty=0,
        presence_penalty=0,
        dry_multiplier=0,
        no_repeat_ngram_size=0,
        min_tokens=0,
        end_ids=(2,),
        temperature=1,
        dynatemp_range=0,
        min_p=0,
        top_k=0,
        top_p=1,
        typical_p=1,
        epsilon_cutoff=0,
        eta_cutoff=0,
        top_a=0,
        tail_free=1,
        xtc_probability=0,
        mirostat=0,
    )
    assert off == compiled() == Chain()
    assert entries(off) == []
    assert off.values.shape == (0, 3)


def test_a_minimum_without_tokens_that_end_the_text_is_off() -> None:
    assert compiled(min_tokens=3) == Chain()
    assert compiled(suppress_end=True) == Chain()
    (rule,) = compiled(suppress_end=True, min_tokens=3, end_ids=(7,)).rules
    memory = rule.memory([])
    assert memory is not None
    for _ in range(5):
        memory.extend(0, None)  # type: ignore[arg-type]
    assert memory.tokens.tolist() == [7]


def test_temperature_zero_is_top_k_one_in_its_place() -> None:
    assert [rule.kind for rule in compiled(temperature=0, top_p=0.9).rules] == [
        RuleKind.TOP_K,
        RuleKind.TOP_P,
    ]
    assert compiled(temperature=0).rules == (ZeroTemperature(),)


def test_a_range_makes_the_temperature_dynamic_around_it() -> None:
    assert compiled(dynatemp_range=0.5).rules == (DynamicTemperature(0.5, 1.5, 1.0),)
    (rule,) = compiled(temperature=0.25, dynatemp_range=0.5, dynatemp_exponent=2.0).rules
    assert rule == DynamicTemperature(0.0, 0.75, 2.0)


def test_a_scope_is_one_for_all_or_one_by_rule() -> None:
    settings = {"repetition_penalty": 1.1, "no_repeat_ngram_size": 2, "dry_multiplier": 1.0}

    def scopes(**more: Any) -> list[object]:
        rules = compiled(**settings, **more).rules
        return [rule.scope for rule in rules if isinstance(rule, (RepetitionPenalty, Dry, NoRepeatNgram))]

    assert scopes() == ["output", "all", "output"]
    assert scopes(penalty_scope=64) == [64, 64, 64]
    assert scopes(penalty_scope={"no_repeat_ngram": "all", "dry": 9}) == ["output", 9, "all"]


def test_what_is_drawn_teaches_only_the_rules_that_close_a_chain() -> None:
    assert not compiled(**ALL_ON).learns
    assert compiled(mirostat=1).learns
    assert compiled(adaptive_target=0.3).learns
    assert isinstance(compiled(mirostat=1).rules[-1], Mirostat)


def test_a_callers_rule_has_a_place_and_no_backend_needs_to_know_it() -> None:
    chain = compiled(temperature=0.5, bad_words=((1,),), logits_processors=(lambda ids, logits: logits,))
    assert chain.custom == 1
    assert isinstance(chain.rules[1], Custom)
    assert compiled(temperature=0.5).custom is None


def test_a_chain_without_memories_has_none() -> None:
    assert compiled(temperature=0.5, top_k=4).memory([1, 2]) is None
    assert compiled(repetition_penalty=1.5).memory([1, 2]) is not None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-12}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"dynatemp_range": -0.5}, "dynatemp_range"),
        ({"dynatemp_range": float("nan")}, "dynatemp_range"),
        ({"dynatemp_range": 0.5, "dynatemp_exponent": 0.0}, "dynatemp_exponent"),
        ({"temperature": -1.0, "dynatemp_range": 2.0}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical_p": -0.1}, "typical_p"),
        ({"epsilon_cutoff": 1.1}, "epsilon_cutoff"),
        ({"eta_cutoff": float("nan")}, "eta_cutoff"),
        ({"top_a": 2.0}, "top_a"),
        ({"tail_free": -1.0}, "tail_free"),
        ({"top_h": 1.5}, "top_h"),
        ({"top_n_sigma": -1.0}, "top_n_sigma"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_probability": 0.5, "xtc_threshold": -0.1}, "xtc_threshold"),
        ({"mirostat": 3}, "mirostat"),
        ({"mirostat": 1, "mirostat_tau": 0.0}, "mirostat_tau"),
        ({"mirostat": 1, "mirostat_eta": float("nan")}, "mirostat_eta"),
        ({"adaptive_target": 1.5}, "adaptive_target"),
        ({"adaptive_target": 0.5, "adaptive_decay": 1.0}, "adaptive_decay"),
        ({"mirostat": 2, "adaptive_target": 0.5}, "adaptive_target"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"frequency_penalty": 101.0}, "frequency_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"dry_multiplier": -1.0}, "dry_multiplier"),
        ({"dry_multiplier": 1.0, "dry_base": 0.5}, "dry_base"),
        ({"dry_multiplier": 1.0, "dry_allowed_length": 0}, "dry_allowed_length"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"min_tokens": -1, "end_ids": (1,)}, "min_tokens"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias of token 3"),
        ({"logit_bias": ((3, float("inf")),)}, "logit_bias of token 3"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"bad_words": ((1,), ())}, "bad_words"),
        ({"order": "somebody"}, "somebody"),
        ({"order": ("temperature", "warmth")}, "warmth"),
        ({"order": ("top_k", "top_k")}, "top_k"),
        ({"order": ("temperature",), "top_p": 0.9}, "top_p"),
        ({"order": ("mirostat", "temperature"), "mirostat": 2}, "mirostat"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        compiled(**settings)


def test_the_arrays_of_a_bias_and_bad_words_are_their_memories() -> None:
    chain = compiled(logit_bias=((9, 1.5), (2, -np.inf)), bad_words=((4,), (1, 3)))
    memory = chain.memory([1])
    assert memory is not None
    words, biases = memory.memories
    assert isinstance(chain.rules[0], BadWords)
    assert isinstance(chain.rules[1], LogitBias)
    assert words is not None
    assert words.tokens.tolist() == [3, 4]
    assert biases is not None
    assert (biases.tokens.tolist(), biases.amounts.tolist()) == ([9, 2], [1.5, -np.inf])
