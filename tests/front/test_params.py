"""A setting that cannot be honoured is refused with its name, what was given and what is allowed."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest

from tests.front.odd_values import ODD
from unspool import Beam, BestOf, DoLa, Exact, ParameterError, SamplingParams
from unspool.errors import shown
from unspool.params import Settings
from unspool.sampling.presets import DEFAULT_ORDER, PRESETS
from unspool.sampling.rules import Rule
from unspool.sampling.settings import compile_chain
from unspool.task_presets import TASK_PRESETS

NAN, INF = float("nan"), float("inf")
NUMBERS = [f.name for f in fields(SamplingParams) if f.type.startswith(("float", "int", "Literal"))]
NO_NUMBERS = [
    *(10**400, -(10**5000), 10**5000, int, ..., 1j, "1", b"1", True, np.True_, np.float64("nan")),
    *(np.array([1, 2]), np.array(["a"]), Decimal("sNaN"), np.datetime64(0, "s"), []),
    *(np.complex64(0.5), np.array("1"), np.array(True)),
]
COMPANIONS: dict[str, dict[str, Any]] = {
    "negative_prompt": {"guidance_scale": 2},
    "dynatemp_exponent": {"dynatemp_range": 0.5},
    "xtc_threshold": {"xtc_probability": 0.5},
    "mirostat_tau": {"mirostat": 2},
    "mirostat_eta": {"mirostat": 1},
    "adaptive_decay": {"adaptive_target": 0.5},
    "dry_base": {"dry_multiplier": 0.8},
    "dry_allowed_length": {"dry_multiplier": 0.8},
    "dry_sequence_breakers": {"dry_multiplier": 0.8},
}
"""What turns a setting's rule on."""
SHARES = ("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_a", "tail_free", "top_h")
NO_WORDS: list[Any] = ["um", [""], [[]], [5], 5, b"x", [b"x"], {"a": 1}, [[-1]], [["a"]], [True]]
NO_ORDERS: list[Any] = [{"top_k", "top_p"}, frozenset(), {"top_k": 1}, iter(["top_k"])]
FLAGS = ("p_less", "suppress_eos", "include_stop", "skip_special_tokens", "ignore_eos", "trace")
PENALTIES = ("frequency_penalty", "presence_penalty")


def processor(ids: Any, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return logits


def made(**settings: Any) -> SamplingParams:
    """The settings, and what turns their rules on."""
    companions: dict[str, Any] = {}
    for name in settings:
        companions |= COMPANIONS.get(name, {})
    return SamplingParams(**(companions | settings))


def rules_of(params: SamplingParams, end_ids: tuple[int, ...] = (0,)) -> tuple[Rule, ...]:
    return compile_chain(params.rule_settings(end_ids, words=False)).rules


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[(name, v) for name in NUMBERS for v in NO_NUMBERS],
        *[("temperature", v) for v in (-0.1, NAN, INF, "1", True, [1], 1e-10, 1e10)],
        *[("dynatemp_range", v) for v in (-0.1, NAN, INF, "1", True, 1e10)],
        *[("dynatemp_exponent", v) for v in (0, 0.001, -1, 101, NAN, INF)],
        *[("top_k", v) for v in (-1, 1.5, "5", True, NAN, 2**31)],
        *[(name, v) for name in SHARES for v in (-0.1, 1.1, NAN, INF, -INF, "0.5", False)],
        *[("top_n_sigma", v) for v in (-0.1, 1e7, NAN, INF)],
        *[("xtc_probability", v) for v in (-0.1, 1.1, NAN)],
        *[("xtc_threshold", v) for v in (-0.1, 1.1, NAN)],
        *[("mirostat", v) for v in (-1, 3, 1.0, "2", True)],
        *[("mirostat_tau", v) for v in (0, -1, 31, NAN, INF)],
        *[("mirostat_eta", v) for v in (-0.1, 11, NAN, INF)],
        *[("adaptive_target", v) for v in (-0.1, 1.1, NAN)],
        *[("adaptive_decay", v) for v in (-0.1, 1, NAN)],
        *[("repetition_penalty", v) for v in (0, -1, NAN, INF, "1")],
        *[(name, v) for name in PENALTIES for v in (-101, 101, NAN, INF, "1", True)],
        *[("penalty_scope", v) for v in ("prompt", 0, -1, 1.5, True, ["all"], 2**31)],
        *[("penalty_scope", {"dry": v}) for v in ("prompt", 0, -1, 1.5, True, None)],
        *[("no_repeat_ngram_size", v) for v in (-1, 1.5, "2", True, 2**31)],
        *[("dry_multiplier", v) for v in (-1, 1e5, NAN, INF)],
        *[("dry_base", v) for v in (0.9, 1e5, NAN, INF)],
        *[("dry_allowed_length", v) for v in (0, -1, 1.5, True, 2**31)],
        *[("dry_sequence_breakers", v) for v in NO_WORDS],
        *[("logit_bias", v) for v in ({1: NAN}, {1: INF}, {1: 1e7}, {-1: 1.0}, {1.5: 1.0}, {"a": 1.0})],
        *[("logit_bias", v) for v in ({True: 1.0}, {1: "1"}, {1: True}, 5, "1", [1], [(1, 2, 3)])],
        *[("logit_bias", v) for v in ([(1, 1.0), (1, 2.0)], {1: 1.0, "1": 2.0}, {"²": 1.0})],
        *[
            ("logit_bias", v)
            for v in ("", b"", {"9" * 5000: 1}, {10**5000: 1}, {1: np.complex64(1)}, {1: np.array("1")})
        ],
        *[("bad_words", v) for v in NO_WORDS],
        *[("allowed_token_ids", [v]) for v in (2**31, 10**5000, -(10**5000))],
        *[("allowed_token_ids", v) for v in ("5", [-1], [1.5], 5, [True], {1: 2}, b"x")],
        *[("min_tokens", v) for v in (-1, 1.5, "5", True, 2**31)],
        *[
            ("logits_processors", v)
            for v in (5, "", "x", ["x"], [None], processor, {processor}, {processor: 1})
        ],
        *[("order", v) for v in ("hf", "", 5, [5], b"x", [None])],
        *[("order", v) for v in NO_ORDERS],
        ("preset", np.array([1, 2])),
        *[("penalty_scope", v) for v in ((("dry", 1), ("dry", 2)), ("dry",), iter([("dry", 1)]))],
        *[("preset", v) for v in ("poetry", "", 5, "Code")],
        *[("max_tokens", v) for v in (0, -1, 1.0, "5", True, 2**31)],
        *[("stop", v) for v in ("", ["a", ""], [1], 5, b"x", [b"x"], {"a": 1}, 10**5000, np.array(3))],
        *[
            ("stop_token_ids", v)
            for v in ("5", [-1], [1.5], 5, [True], {1: 2}, 10**5000, [-(10**5000)], np.array(3), b"x")
        ],
        *[(name, v) for name in FLAGS for v in (1, "yes", None, np.True_)],
        *[("seed", v) for v in (-1, 2**64, 1.0, "1", True)],
        *[("n", v) for v in (0, -1, 4097, 1.0, None, True)],
        *[("logprobs", v) for v in (-1, 33, 1.0, None, True)],
        *[("prompt_logprobs", v) for v in (-1, 33, 1.0, True)],
        *[("priority", v) for v in (2**31, -(2**31) - 1, 1.0, None, True)],
        *[("cache_salt", v) for v in (5, b"x")],
    ],
    ids=shown,
)
def test_a_bad_value_is_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        made(**{name: bad})
    assert "must be" in str(caught.value)


GOOD: dict[str, tuple[Any, ...]] = {
    "preset": (None, *TASK_PRESETS),
    "temperature": (None, 0, 1e-9, 0.7, 1, 1e9, np.float32(0.5)),
    "dynatemp_range": (None, 0, 0.5, 1e9 - 1),
    "dynatemp_exponent": (None, 0.01, 1, 100),
    "top_k": (None, 0, 1, 2**31 - 1, np.int64(4)),
    **{name: (None, 0, 0.5, 1, np.float64(0.25)) for name in SHARES},
    "top_n_sigma": (None, 0, 1, 1e6),
    "p_less": (False, True),
    "xtc_probability": (None, 0, 0.5, 1),
    "xtc_threshold": (None, 0, 0.1, 1),
    "mirostat": (None, 0, 1, 2, np.int8(2)),
    "mirostat_tau": (None, 0.01, 5, 30),
    "mirostat_eta": (None, 0, 0.1, 10),
    "adaptive_target": (None, 0, 0.5, 1),
    "adaptive_decay": (None, 0, 0.9, 0.99),
    "repetition_penalty": (None, 1e-4, 1, 1e4),
    **dict.fromkeys(PENALTIES, (None, -100, 0, 0.5, 100)),
    "penalty_scope": (None, "output", "all", 1, 64, 2**31 - 1, {}, {"dry": 7, "repetition_penalty": "all"}),
    "no_repeat_ngram_size": (None, 0, 1, 2**31 - 1),
    "dry_multiplier": (None, 0, 0.8, 1e4),
    "dry_base": (None, 1, 1.75, 1e4),
    "dry_allowed_length": (None, 1, 2, 2**31 - 1),
    "dry_sequence_breakers": (None, [], ["\n", ":"], [[1, 2], "x"], deque([np.array([3])])),
    "logit_bias": (None, {}, {1: 1e6, 2: -INF, 0: -1e9}, [(1, 0.5)], {"17": 1}, {np.int32(4): np.float32(1)}),
    "bad_words": (None, [], ["um"], [[1], [2, 3], "x"], ("x",)),
    "allowed_token_ids": (None, [1], (1, 2), np.array([3])),
    "min_tokens": (None, 0, 2**31 - 1),
    "suppress_eos": (False, True),
    "logits_processors": (None, [], [processor], (processor, np.add)),
    "order": (None, *PRESETS, DEFAULT_ORDER, ["temperature"], ()),
    "max_tokens": (None, 1, 2**31 - 1),
    "stop": (None, "x", ["x", "y"], ("x",), []),
    "stop_token_ids": (None, [], [1, 2], np.array([3]), [0, 2**31 - 1]),
    "include_stop": (False, True),
    "skip_special_tokens": (False, True),
    "ignore_eos": (False, True),
    "seed": (None, 0, 2**64 - 1),
    "n": (1, 4096),
    "strategy": (None, Beam(2), Exact()),
    "source": (None, DoLa()),
    "guidance_scale": (None, 0, 1, 1e4),
    "negative_prompt": (None, "", "x", [], [1, 2], np.array([3])),
    "select": (None, BestOf(1)),
    "logprobs": (0, 32),
    "prompt_logprobs": (None, 0, 32),
    "trace": (False, True),
    "priority": (-(2**31), 2**31 - 1),
    "cache_salt": (None, "", "x"),
}


@pytest.mark.parametrize(
    ("name", "good"), [(name, v) for name, values in GOOD.items() for v in values], ids=shown
)
def test_the_ends_of_a_range_are_in_it(name: str, good: Any) -> None:
    made(**{name: good})


def test_every_setting_has_its_range_tested() -> None:
    assert set(GOOD) == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("name", GOOD)
def test_whatever_a_setting_is_nothing_but_a_parameter_error_comes(name: str) -> None:
    refused = 0
    for value in ODD:
        try:
            params = made(**{name: value})
            assert replace(params) == params
            assert hash(params) == hash(replace(params))
        except ParameterError:
            refused += 1
    assert refused > len(ODD) / 2


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match=r"'temprature'; did you mean temperature\?"):
        SamplingParams(temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match=r"'zzz'; known are preset, temperature, dynatemp_range"):
        SamplingParams.of(None, {"zzz": 1})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(("name", "switches"), list(COMPANIONS.items()))
def test_a_setting_of_a_rule_that_is_not_on_is_refused(name: str, switches: dict[str, Any]) -> None:
    [switch] = switches
    value = GOOD[name][-1]
    with pytest.raises(ParameterError, match=rf"{name} is set, but {switch} is not: it would do nothing"):
        SamplingParams(**{name: value})
    assert getattr(made(**{name: value}), switch) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"mirostat": 0, "mirostat_tau": -1.0},
        {"mirostat": 0, "mirostat_eta": NAN},
        {"dynatemp_range": 0, "dynatemp_exponent": 0.0},
        {"xtc_probability": 0, "xtc_threshold": 2.0},
        {"dry_multiplier": 0, "dry_base": 0.5},
    ],
    ids=shown,
)
def test_a_range_holds_for_a_rule_that_is_off(settings: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=rf"{list(settings)[1]} must be"):
        SamplingParams(**settings)


def test_rules_that_cannot_both_end_a_chain_are_refused_together() -> None:
    with pytest.raises(ParameterError, match="mirostat and adaptive_target each end a chain"):
        SamplingParams(mirostat=2, adaptive_target=0.5)


def test_settings_by_name_go_before_params() -> None:
    params = SamplingParams(temperature=0.5, top_k=7)
    assert SamplingParams.of(params, {"top_k": 3}) == SamplingParams(temperature=0.5, top_k=3)
    assert SamplingParams.of(params, {}) == params
    with pytest.raises(ParameterError, match="SamplingParams"):
        SamplingParams.of({"top_k": 3}, {})  # type: ignore[arg-type]


def test_every_setting_may_be_given_by_name() -> None:
    hints = get_type_hints(Settings)
    assert list(hints) == [field.name for field in fields(SamplingParams)]
    assert hints == get_type_hints(SamplingParams)


def test_equal_settings_are_equal_however_they_were_given() -> None:
    assert SamplingParams(stop="x") == SamplingParams(stop=["x", "x"])
    one = SamplingParams(
        stop=["x"],
        stop_token_ids=[1],
        logit_bias={1: 2, "3": -INF},  # type: ignore[arg-type]  # as JSON has it
        bad_words=["a", [1, 2]],
        allowed_token_ids=[4, 5],
        order=list(DEFAULT_ORDER),
        penalty_scope={"dry": 5},
        dry_multiplier=1,
        dry_sequence_breakers=["\n", [3]],
        logits_processors=[processor],
    )
    other = SamplingParams(
        stop="x",
        stop_token_ids=(1,),
        logit_bias=[(1, 2.0), (3, -INF)],
        bad_words=("a", (1, 2)),
        allowed_token_ids=np.array([4, 5]),
        order=DEFAULT_ORDER,
        penalty_scope={"dry": np.int64(5)},  # type: ignore[dict-item]
        dry_multiplier=1.0,
        dry_sequence_breakers=("\n", (3,)),
        logits_processors=(processor,),
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one != replace(one, penalty_scope=None)


def test_settings_can_be_copied_and_replaced() -> None:
    for name, values in GOOD.items():
        for value in values:
            params = made(**{name: value})
            assert copy.deepcopy(params) == params
            assert replace(params, seed=3) == replace(params, seed=3)
            assert getattr(replace(params, seed=3), name) == (3 if name == "seed" else getattr(params, name))
    with pytest.raises(ParameterError, match="temperature must be"):
        replace(SamplingParams(), temperature=-1)


ALL_ON: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "dry_multiplier": 0.8,
    "no_repeat_ngram_size": 3,
    "bad_words": ["x"],
    "logit_bias": {1: 1.0},
    "allowed_token_ids": [1, 2],
    "min_tokens": 3,
    "logits_processors": [processor],
    "temperature": 0.5,
    "top_n_sigma": 1.0,
    "min_p": 0.1,
    "top_k": 5,
    "top_p": 0.9,
    "typical_p": 0.9,
    "epsilon_cutoff": 1e-3,
    "eta_cutoff": 1e-3,
    "top_a": 0.1,
    "tail_free": 0.9,
    "top_h": 0.4,
    "p_less": True,
    "xtc_probability": 0.5,
    "mirostat": 2,
    "adaptive_target": 0.5,
}
"""A setting that turns on each rule of the default order, in that order."""
OFF: dict[str, Any] = {
    "repetition_penalty": 1,
    **dict.fromkeys(PENALTIES, 0),
    **dict.fromkeys(("dry_multiplier", "no_repeat_ngram_size", "min_tokens", "dynatemp_range"), 0),
    **dict.fromkeys(("min_p", "top_k", "epsilon_cutoff", "eta_cutoff", "top_a"), 0),
    **dict.fromkeys(("top_p", "typical_p", "tail_free"), 1),
    **dict.fromkeys(("xtc_probability", "mirostat"), 0),
    "temperature": 1,
    "logit_bias": {},
    "bad_words": [],
    "logits_processors": [],
    "p_less": False,
}


@pytest.mark.parametrize("last", ["mirostat", "adaptive_target"])
def test_the_chain_has_the_rules_that_are_on_in_the_default_order(last: str) -> None:
    ends = {"mirostat": "mirostat", "adaptive_target": "adaptive_p"}
    on = {name: v for name, v in reversed(ALL_ON.items()) if name not in ends or name == last}
    names = [rule.name for rule in rules_of(SamplingParams(**on)) if rule.name != "witness"]
    assert names == [name for name in DEFAULT_ORDER if name not in ends.values() or name == ends[last]]
    assert len(ALL_ON) == len(DEFAULT_ORDER)


def test_values_that_are_off_make_no_rule() -> None:
    assert not rules_of(SamplingParams(**OFF))
    assert not rules_of(SamplingParams())


@pytest.mark.parametrize(("setting", "rule"), list(zip(ALL_ON, DEFAULT_ORDER, strict=True)))
@pytest.mark.parametrize("engine", PRESETS)
def test_an_engines_order_refuses_by_name_what_the_engine_lacks(engine: str, setting: str, rule: str) -> None:
    given = {setting: ALL_ON[setting], "order": engine}
    if rule in PRESETS[engine].order:
        assert [r.name for r in rules_of(SamplingParams(**given)) if r.name != "witness"] == [rule]
    else:
        with pytest.raises(
            ParameterError, match=rf"{setting}.* is set, but the order of '{engine}' has no pl"
        ):
            SamplingParams(**given)


@pytest.mark.parametrize("engine", PRESETS)
def test_an_engine_without_a_dynamic_temperature_refuses_it(engine: str) -> None:
    if PRESETS[engine].dynamic_temperature:
        assert len(rules_of(SamplingParams(dynatemp_range=0.5, order=engine))) == 1
    else:
        with pytest.raises(ParameterError, match=f"dynatemp_range is set, but the order of '{engine}'"):
            SamplingParams(dynatemp_range=0.5, order=engine)


def test_an_order_is_the_callers_own() -> None:
    params = SamplingParams(temperature=0.5, top_k=5, top_p=0.9, order=["top_p", "temperature", "top_k"])
    assert [rule.name for rule in rules_of(params)] == ["top_p", "temperature", "top_k"]
    for order, said in (
        (["temperature", "top_k"], r"top_p is set, but order \(temperature, top_k\) has no place for it"),
        (["temperature", "top_k", "top_p", "temperature"], "order names a rule twice"),
        (["temperature", "topk", "top_p"], "order names 'topk', which is no rule"),
        (["mirostat", "temperature", "top_k", "top_p"], "mirostat must come last in order"),
    ):
        with pytest.raises(ParameterError, match=said):
            replace(params, order=order)


def test_a_scope_is_for_all_rules_or_one_by_its_name() -> None:
    on: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
    on |= {"dry_multiplier": 1, "no_repeat_ngram_size": 2}

    def scopes(**settings: Any) -> dict[str, Any]:
        return {rule.name: rule.scope for rule in rules_of(SamplingParams(**on, **settings))}  # type: ignore[attr-defined]

    default = {name: "output" for name in (*on, "no_repeat_ngram", "dry") if name in DEFAULT_ORDER}
    default["dry"] = "all"
    assert scopes() == default
    assert scopes(penalty_scope=7) == dict.fromkeys(default, 7)
    assert scopes(penalty_scope={"dry": 7, "presence_penalty": "all"}) == default | {
        "dry": 7,
        "presence_penalty": "all",
    }
    with pytest.raises(ParameterError, match="penalty_scope names 'top_k'; the rules with a scope are"):
        SamplingParams(penalty_scope={"top_k": 5})


def test_an_engines_order_brings_its_scopes_which_a_caller_may_replace() -> None:
    [rule] = rules_of(SamplingParams(repetition_penalty=1.1, order="llama.cpp"))
    assert rule.scope == 64  # type: ignore[attr-defined]
    [rule] = rules_of(SamplingParams(repetition_penalty=1.1, order="llama.cpp", penalty_scope="all"))
    assert rule.scope == "all"  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", TASK_PRESETS)
def test_explicit_settings_win_over_a_preset_which_wins_over_the_models_own(task: str) -> None:
    model: Settings = {"temperature": 1.7, "top_p": 0.33, "min_p": 0.22, "top_k": 11}
    stated = TASK_PRESETS[task].settings
    resolved = SamplingParams(preset=task).with_defaults(model)
    for name, of_model in model.items():
        assert getattr(resolved, name) == stated.get(name, of_model)
    explicit = SamplingParams(preset=task, temperature=0.9, top_p=0.8, min_p=0.0, top_k=0).with_defaults(
        model
    )
    assert (explicit.temperature, explicit.top_p, explicit.min_p, explicit.top_k) == (0.9, 0.8, 0, 0)
    assert SamplingParams(temperature=0.9).with_defaults({}) == SamplingParams(temperature=0.9)
    assert SamplingParams().with_defaults(model) == SamplingParams(**model)


def test_words_become_token_ids_before_the_model_sees_them() -> None:
    with pytest.raises(ParameterError, match="bad_words holds text, which an engine does not know"):
        SamplingParams(bad_words=["x"]).token_ids()
    listed = SamplingParams(bad_words=[[1, 2]], logit_bias={7: 1.0}, allowed_token_ids=[3]).token_ids()
    assert (listed["bad_words"], listed["logit_bias"], listed["allowed_token_ids"]) == ((1, 2), (7,), (3,))


@pytest.mark.parametrize("value", [-0.5, 1e10, float("inf")])
def test_a_dynamic_temperature_out_of_range_is_refused_as_it_was_given(value: float) -> None:
    with pytest.raises(ParameterError, match=r"dynatemp_range must be from 0 \(off\) to 1e9, not") as error:
        SamplingParams(dynatemp_range=value)
    assert str(error.value).endswith(f"not {value}")


def test_the_largest_dynamic_temperature_is_allowed() -> None:
    assert SamplingParams(temperature=1e9, dynatemp_range=1e9).dynatemp_range == 1e9


@pytest.mark.parametrize("preset", [["code"], {}, 3, "cod"])
def test_a_preset_that_is_none_is_refused(preset: Any) -> None:
    with pytest.raises(ParameterError, match="preset must be one of factual"):
        SamplingParams(preset=preset)


def test_an_engines_scopes_win_over_the_models_own() -> None:
    stated = Settings(penalty_scope={"repetition_penalty": 8})
    vllm = SamplingParams(order="vllm", repetition_penalty=1.1).with_defaults(stated)
    assert vllm.penalty_scope is None
    ours = SamplingParams(repetition_penalty=1.1).with_defaults(stated)
    assert dict(ours.penalty_scope) == {"repetition_penalty": 8}  # type: ignore[arg-type]


def test_settings_by_name_are_equal_in_whatever_order_they_were_given() -> None:
    scopes: Any = SamplingParams(penalty_scope={"dry": 5, "repetition_penalty": "all", "presence_penalty": 7})
    assert scopes.penalty_scope == (("repetition_penalty", "all"), ("presence_penalty", 7), ("dry", 5))
    turned = SamplingParams(penalty_scope=dict(reversed(scopes.penalty_scope)))
    assert (turned, hash(turned)) == (scopes, hash(scopes))
    biases = SamplingParams(logit_bias={9: 1.0, 2: -INF, 5: 0.5})
    assert biases.logit_bias == ((2, -INF), (5, 0.5), (9, 1.0))
    keys: dict[Any, float] = {"5": 0.5, 9: 1, 2: -INF}
    assert SamplingParams(logit_bias=keys) == biases


@pytest.mark.parametrize("unhashable", [(([], 5),), ((["dry"], 5),), {5: 5}, {None: 5}, {("dry",): 5}])
def test_a_scope_of_what_is_no_rule_is_refused(unhashable: Any) -> None:
    with pytest.raises(ParameterError, match=r"penalty_scope names .*; the rules with a scope are"):
        SamplingParams(penalty_scope=unhashable)


def test_scopes_by_rule_leave_the_others_to_the_model_and_then_to_the_order() -> None:
    penalties = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    stated = Settings(penalty_scope=dict.fromkeys(penalties, 64))
    given = SamplingParams(penalty_scope={"dry": 8, "presence_penalty": "output"})

    def scopes(params: SamplingParams) -> dict[str, Any]:
        on = replace(params, **dict.fromkeys(penalties, 1.5), dry_multiplier=0.8, no_repeat_ngram_size=2)  # type: ignore[arg-type]
        return {rule.name: rule.scope for rule in rules_of(on)}  # type: ignore[attr-defined]

    assert scopes(given.with_defaults(stated)) == {
        "repetition_penalty": 64,
        "frequency_penalty": 64,
        "presence_penalty": "output",
        "dry": 8,
        "no_repeat_ngram": "output",
    }
    kept = SamplingParams(**stated).penalty_scope  # as a model's settings are kept
    assert given.with_defaults(Settings(penalty_scope=kept)) == given.with_defaults(stated)
    assert given.with_defaults(stated).with_defaults(stated) == given.with_defaults(stated)
    whole = given.with_defaults(Settings(penalty_scope="all"))
    assert scopes(whole)["repetition_penalty"] == scopes(whole)["no_repeat_ngram"] == "all"
    assert scopes(whole)["dry"] == 8
    assert SamplingParams(penalty_scope=5).with_defaults(stated).penalty_scope == 5
    assert SamplingParams(penalty_scope={}).with_defaults(stated) == SamplingParams(**stated)
    assert given.with_defaults({}) == given
    vllm = replace(given, order="vllm")
    assert vllm.with_defaults(stated) == vllm  # an engine's law has scopes of its own
