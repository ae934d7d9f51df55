"""A million draws of each method beside its law, by chi-square."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling import test_definitions as define
from tests.sampling.plans import Asked, after, chain, draws_of, memory_of
from tests.sampling.rows import assert_drawn_from, sample_natively
from unspool.sampling.noise import mix
from unspool.sampling.rules import (
    AdaptiveP,
    AllowedTokens,
    BadWords,
    Dry,
    DynamicTemperature,
    Epsilon,
    Eta,
    FrequencyPenalty,
    LogitBias,
    MinimumTokens,
    MinP,
    Mirostat,
    NoRepeatNgram,
    PLess,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    TailFree,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Witness,
    Xtc,
)
from unspool.sampling.sampler import sample

SIZE = 40
PROMPT, OUTPUT = [1, 5, 30], [5, 7, 1, 5]
LOGITS = (2 * np.random.default_rng(5).standard_normal(SIZE)).astype(np.float32)

METHODS: dict[str, tuple[Rule, ...]] = {
    "the model's own law": (),
    "temperature 0.7": (Temperature(0.7),),
    "temperature 3": (Temperature(3.0),),
    "dynamic temperature": (DynamicTemperature(0.3, 2.0, 0.8),),
    "top-k": (TopK(10),),
    "top-p": (TopP(0.85),),
    "min-p": (MinP(0.02),),
    "typical": (Typical(0.6),),
    "epsilon": (Epsilon(0.01),),
    "eta": (Eta(0.02),),
    "top-a": (TopA(0.1),),
    "top-n-sigma": (TopNSigma(1.4),),
    "tail-free": (TailFree(0.95),),
    "top-h": (TopH(0.8),),
    "p-less": (PLess(),),
    "xtc": (Xtc(1.0, 0.05),),
    "mirostat 1": (Witness(), Mirostat(1, 1.5)),
    "mirostat 2": (Witness(), Mirostat(2, 2.0)),
    "adaptive-p": (TopK(12), Witness(), AdaptiveP(0.3)),
    "repetition penalty": (RepetitionPenalty(1.5, "all"),),
    "frequency penalty": (FrequencyPenalty(0.8),),
    "presence penalty": (PresencePenalty(-1.0, 3),),
    "n-gram": (NoRepeatNgram(2),),
    "dry": (Dry(1.0, 1.75, 1),),
    "bias": (LogitBias(((3, 4.0), (7, -np.inf))),),
    "bad words": (BadWords(((5, 9), (2,))),),
    "allowed tokens": (AllowedTokens((3, 9, 11, 30, 31, 39)),),
    "minimum tokens": (MinimumTokens(9, (0, 4)),),
    "a usual chain": (RepetitionPenalty(1.5), Temperature(1.3), MinP(0.02), TopK(25), TopP(0.95)),
    "truncation first": (TopP(0.9), Temperature(2.0)),
}


def law_of(rules: tuple[Rule, ...]) -> npt.NDArray[np.float64]:
    law = after(LOGITS, *rules, prompt=PROMPT, output=OUTPUT)
    probabilities = np.zeros(SIZE)
    probabilities[law.ids] = law.probabilities
    return probabilities


def counts_of(rules: tuple[Rule, ...], positions: int, samples: int) -> npt.NDArray[np.int64]:
    of = chain(*rules)
    asked = Asked(of, memory_of(of, PROMPT, OUTPUT), mix(20_240_229))
    every = np.arange(positions * samples)
    plan = draws_of(asked, every % positions, every // positions)
    results = sample_natively(LOGITS[None], plan, threads=2)
    assert not results.status.any()
    return np.bincount(results.tokens, minlength=SIZE)


@pytest.mark.parametrize("name", METHODS)
def test_draws_follow_the_law(name: str) -> None:
    """At a thousand positions of a hundred samples."""
    probabilities = law_of(METHODS[name])
    assert np.count_nonzero(probabilities) >= 2
    assert_drawn_from(probabilities, counts_of(METHODS[name], 1000, 100))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_million_draws_follow_the_law(name: str) -> None:
    assert_drawn_from(law_of(METHODS[name]), counts_of(METHODS[name], 10_000, 100))


@pytest.mark.parametrize("samples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_the_coin_and_the_token_are_independent(samples: int) -> None:
    """XTC now and then: the law is the mixture of its two."""
    with_it, without = law_of((Xtc(1.0, 0.05),)), law_of(())
    assert_drawn_from(0.3 * with_it + 0.7 * without, counts_of((Xtc(0.3, 0.05),), 10_000, samples))


def test_the_reference_draws_follow_the_law() -> None:
    rules = METHODS["a usual chain"]
    of = chain(*rules)
    asked = Asked(of, memory_of(of, PROMPT, OUTPUT), mix(7))
    results = sample(LOGITS[None], draws_of(asked, np.arange(3000), np.zeros(3000, np.int32)))
    assert_drawn_from(law_of(rules), np.bincount(results.tokens, minlength=SIZE))


def test_the_law_is_the_plain_softmax_where_there_are_no_rules() -> None:
    expected = define.law([float(x) for x in LOGITS])
    np.testing.assert_allclose(law_of(()), list(expected.values()), atol=1e-7)


@pytest.mark.slow
def test_rare_tokens_come_as_often_as_they_should() -> None:
    """8192 tokens share a ten-thousandth: of a million draws a hundred are theirs, each another one's."""
    rare = 8192
    logits = np.full(rare + 1, np.log(1e-4 / rare), np.float32)
    logits[0] = np.log(1 - 1e-4)
    plan = draws_of(Asked(key=mix(3)), np.arange(1_000_000), np.zeros(1_000_000, np.int32))
    tokens = sample_natively(logits[None], plan, threads=2).tokens
    came = np.count_nonzero(tokens)
    assert abs(came - 100) < 40
    assert len(set(tokens[tokens > 0].tolist())) > 0.9 * came
