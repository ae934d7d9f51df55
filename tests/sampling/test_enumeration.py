"""Rules that remember and learn: every sequence's exact probability, and how often each comes.

The exact law is a plain program: definitions over lists, the surprise taken from a dictionary. Beside it
stand the probabilities that the sampler reports along each sequence, and what it draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling import test_definitions as define
from tests.sampling.plans import Asked, draws_of, plan_of
from tests.sampling.rows import assert_drawn_from, sample_natively
from tests.sampling.test_memories import in_scope, penalized_by_dry, repeated
from unspool.sampling.chain import Chain, ChainMemory
from unspool.sampling.noise import mix
from unspool.sampling.rules import (
    AdaptiveP,
    Dry,
    Facts,
    FrequencyPenalty,
    MinimumTokens,
    Mirostat,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    Temperature,
    TopK,
    TopP,
    Witness,
)
from unspool.sampling.sampler import sample

Row = list[float]
Tokens = list[int]
Law = dict[int, float]
Step = Callable[[Row, Tokens, list[tuple[float, float]]], tuple[Law, Law]]
"""(logits, output so far, (seen p, drawn p) of each token of it) -> the law that reaches the last rule, and
the law that is drawn from."""

PROMPT = [0, 1, 0]


def plain(change: Callable[[Row, Tokens], Row]) -> Step:
    """A step whose rules learn nothing."""

    def step(z: Row, output: Tokens, learned: list[tuple[float, float]]) -> tuple[Law, Law]:
        law = define.law(change(z, output))
        return law, law

    return step


def repetition(z: Row, seen: Tokens, r: float) -> Row:
    return [(x / r if x > 0 else x * r) if i in seen else x for i, x in enumerate(z)]


def counted(z: Row, seen: Tokens, frequency: float, presence: float) -> Row:
    return [x - frequency * seen.count(i) - presence * (i in seen) for i, x in enumerate(z)]


def without(z: Row, banned: list[int]) -> Row:
    return [-math.inf if i in banned else x for i, x in enumerate(z)]


def dry(z: Row, output: Tokens) -> Row:
    costs = penalized_by_dry(PROMPT + output, 1.5, 1.75, 1, [(2,)])
    return [x + costs.get(i, 0.0) for i, x in enumerate(z)]


def stacked(z: Row, output: Tokens) -> Row:
    z = repetition(z, in_scope(2, PROMPT, output), 1.8)
    z = counted(z, output, 0.4, -0.2)
    z = without(z, list(repeated(PROMPT + output, 2)))
    return define.top_p(define.temperature(z, 0.9), 0.97)


def mirostat(version: int, tau: float, eta: float, renormalized: bool) -> Step:
    cut = define.mirostat_1 if version == 1 else define.mirostat_2

    def step(z: Row, output: Tokens, learned: list[tuple[float, float]]) -> tuple[Law, Law]:
        mu = 2 * tau
        for seen, drawn in learned:
            mu -= eta * (-math.log2(drawn if renormalized else seen) - tau)
        return define.law(z), define.law(cut(z, mu))

    return step


def adaptive(target: float, decay: float) -> Step:
    def step(z: Row, output: Tokens, learned: list[tuple[float, float]]) -> tuple[Law, Law]:
        total, weight = target / (1 - decay), 1 / (1 - decay)
        for seen, _ in learned:
            total, weight = seen + decay * total, 1 + decay * weight
        aim = min(1.0, max(0.0, 2 * target - total / weight))
        cut = define.top_k(z, 3)
        return define.law(cut), define.law(define.adaptive_p(cut, aim))

    return step


CHAINS: dict[str, tuple[int, int, tuple[Rule, ...], Step]] = {
    "repetition, output": (
        4,
        3,
        (RepetitionPenalty(1.8),),
        plain(lambda z, output: repetition(z, output, 1.8)),
    ),
    "repetition, last 2": (
        3,
        4,
        (RepetitionPenalty(2.5, 2),),
        plain(lambda z, output: repetition(z, in_scope(2, PROMPT, output), 2.5)),
    ),
    "frequency, all": (
        3,
        4,
        (FrequencyPenalty(0.7, "all"),),
        plain(lambda z, output: counted(z, PROMPT + output, 0.7, 0.0)),
    ),
    "presence, output": (
        4,
        3,
        (PresencePenalty(-0.9),),
        plain(lambda z, output: counted(z, output, 0.0, -0.9)),
    ),
    "no 2-gram again": (
        4,
        4,
        (NoRepeatNgram(2, "all"),),
        plain(lambda z, output: without(z, list(repeated(PROMPT + output, 2)))),
    ),
    "dry": (3, 4, (Dry(1.5, 1.75, 1, ((2,),)),), plain(dry)),
    "minimum tokens": (
        4,
        4,
        (MinimumTokens(2, (3,)),),
        plain(lambda z, output: without(z, [3] if len(output) < 2 else [])),
    ),
    "a stack": (
        4,
        3,
        (
            RepetitionPenalty(1.8, 2),
            FrequencyPenalty(0.4),
            PresencePenalty(-0.2),
            NoRepeatNgram(2, "all"),
            Temperature(0.9),
            TopP(0.97),
        ),
        plain(stacked),
    ),
    "mirostat 1": (5, 3, (Witness(), Mirostat(1, 1.3, 0.9)), mirostat(1, 1.3, 0.9, False)),
    "mirostat 1, renormalized": (
        5,
        3,
        (Witness(), Mirostat(1, 1.3, 0.9, True)),
        mirostat(1, 1.3, 0.9, True),
    ),
    "mirostat 2": (5, 3, (Witness(), Mirostat(2, 1.4, 1.0)), mirostat(2, 1.4, 1.0, False)),
    "mirostat 2, renormalized": (
        5,
        3,
        (Witness(), Mirostat(2, 1.4, 1.0, True)),
        mirostat(2, 1.4, 1.0, True),
    ),
    "adaptive-p": (5, 3, (TopK(3), Witness(), AdaptiveP(0.4, 0.8)), adaptive(0.4, 0.8)),
}


def table(vocabulary: int, length: int) -> dict[tuple[int, ...], npt.NDArray[np.float32]]:
    """Logits of a model: a row for every prefix."""
    rng = np.random.default_rng(vocabulary * 10 + length)
    return {
        prefix: (1.5 * rng.standard_normal(vocabulary)).astype(np.float32)
        for n in range(length)
        for prefix in itertools.product(range(vocabulary), repeat=n)
    }


def exact_law(name: str) -> dict[tuple[int, ...], float]:
    """Every sequence with a probability, by the plain program."""
    vocabulary, length, _, step = CHAINS[name]
    model, exact = table(vocabulary, length), {}
    growing: list[tuple[Tokens, float, list[tuple[float, float]]]] = [([], 1.0, [])]
    while growing:
        output, probability, learned = growing.pop()
        if len(output) == length:
            exact[tuple(output)] = probability
            continue
        seen, law = step([float(x) for x in model[tuple(output)]], output, learned)
        growing += [([*output, i], probability * p, [*learned, (seen[i], p)]) for i, p in law.items()]
    return exact


@pytest.mark.parametrize("name", CHAINS)
def test_the_sampler_reports_every_sequences_exact_probability(name: str) -> None:
    vocabulary, length, rules, _ = CHAINS[name]
    model, chain = table(vocabulary, length), Chain(rules)
    exact = exact_law(name)
    assert math.fsum(exact.values()) == pytest.approx(1)
    assert sum(p > 0.005 for p in exact.values()) >= 8
    for sequence in itertools.product(range(vocabulary), repeat=length):
        memory, logprob = chain.memory(PROMPT), 0.0
        for n, token in enumerate(sequence):
            results = sample(model[sequence[:n]][None], plan_of([Asked(chain, memory, given=token)]))
            logprob += float(results.processed_logprobs[0])
            if logprob == -math.inf:
                break
            if memory is not None:
                memory.extend(token, Facts(results.surprises[0], -results.processed_logprobs[0]))
        assert math.exp(logprob) == pytest.approx(exact.get(sequence, 0.0), abs=1e-6)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_sequences_come_as_often_as_their_exact_probability(name: str, count: int) -> None:
    """Samples of one request, all of those with the same tokens so far in one plan."""
    vocabulary, length, rules, _ = CHAINS[name]
    model, chain = table(vocabulary, length), Chain(rules)
    counts = np.zeros((vocabulary,) * length, np.int64)
    growing: list[tuple[tuple[int, ...], ChainMemory | None, npt.NDArray[np.int32]]] = [
        ((), chain.memory(PROMPT), np.arange(count, dtype=np.int32))
    ]
    while growing:
        prefix, memory, samples = growing.pop()
        if len(prefix) == length:
            counts[prefix] = len(samples)
            continue
        asked = Asked(chain, memory, mix(11))
        results = sample_natively(
            model[prefix][None], draws_of(asked, np.full(len(samples), len(prefix), np.int32), samples)
        )
        for token in np.unique(results.tokens).tolist():
            (came,) = np.nonzero(results.tokens == token)
            grown = None if memory is None else memory.fork()
            if grown is not None:
                figures = results.surprises[came[0]], -results.processed_logprobs[came[0]]
                grown.extend(token, Facts(*figures))
            growing.append(((*prefix, token), grown, samples[came]))
    exact = np.zeros((vocabulary,) * length)
    for sequence, p in exact_law(name).items():
        exact[sequence] = p
    assert_drawn_from(exact.ravel(), counts.ravel())
