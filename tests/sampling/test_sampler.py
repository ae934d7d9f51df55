"""The reference sampler: statuses, what a draw depends on, and what is reported of it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling.plans import UNMOVED, Asked, after, chain, memory_of, plan_of
from tests.sampling.rows import log_of
from tests.sampling.test_rules import rules_of
from unspool.sampling.chain import Chain
from unspool.sampling.noise import exponentials_of_bits, mix
from unspool.sampling.plan import RowResults, RowStatus
from unspool.sampling.rules import (
    AdaptiveP,
    AllowedTokens,
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
from unspool.sampling.sampler import laws, sample

Float32Array = npt.NDArray[np.float32]

SPICED = Chain(rules_of(temperature=0.8, top_k=20, top_p=0.9))


def random_row(size: int, seed: int) -> Float32Array:
    return (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def assert_same_rows(got: RowResults, n: int, expected: RowResults, m: int) -> None:
    for name in ("integers", "figures"):
        np.testing.assert_array_equal(getattr(got, name)[:, n], getattr(expected, name)[:, m])
    np.testing.assert_array_equal(got.top_tokens[:, n], expected.top_tokens[:, m])
    np.testing.assert_array_equal(got.top_logprobs[:, :, n], expected.top_logprobs[:, :, m])


# Statuses


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ([0, np.nan, 1], RowStatus.NOT_A_NUMBER),
        ([0, np.inf, 1], RowStatus.NOT_A_NUMBER),
        ([-np.inf, -np.inf, np.nan], RowStatus.NOT_A_NUMBER),
        ([-np.inf, -np.inf, -np.inf], RowStatus.EMPTY),
        ([3e38, 1, 0], RowStatus.NOT_A_NUMBER),  # the temperature below takes it beyond float32
        ([-3e38, -3e38, -np.inf], RowStatus.NOT_A_NUMBER),
        ([-3e38, 1, -np.inf], RowStatus.OK),
        ([-np.inf, 3, -np.inf], RowStatus.OK),
    ],
)
def test_a_row_without_a_law_has_a_status_and_no_token(row: list[float], status: RowStatus) -> None:
    logits = np.array([row, [0, 1, 2]], np.float32)
    plan = plan_of([Asked(chain(Temperature(0.1))), Asked(row=1)], num_logprobs=2)
    results = sample(logits, plan)
    assert results.status.tolist() == [status, RowStatus.OK]
    assert (results.tokens[0] == -1) == (status != RowStatus.OK)
    assert results.tokens[1] >= 0
    for field in fields(RowResults):
        assert not np.isnan(getattr(results, field.name)).any()
    assert laws(logits, plan)[0][0] == status


@pytest.mark.parametrize(
    "rule",
    [
        AllowedTokens((3,)),
        NoRepeatNgram(1),
        LogitBias(tuple((i, -np.inf) for i in range(3))),
        MinimumTokens(99, (0, 1, 2)),
    ],
)
def test_bans_that_leave_nothing_are_a_status_and_not_a_token(rule: Rule) -> None:
    logits = np.array([[1, 2, 3, -np.inf]], np.float32)
    of = chain(rule, TopK(5), TopP(0.9))
    results = sample(logits, plan_of([Asked(of, memory_of(of, [], [0, 1, 2]))]))
    assert results.status.tolist() == [RowStatus.EMPTY]
    assert results.tokens.tolist() == [-1]
    assert not results.figures.any()


@pytest.mark.parametrize("largest", [3e38, -3e38])
def test_a_penalty_beyond_float32_is_not_a_number_and_no_ban(largest: float) -> None:
    of = chain(RepetitionPenalty(0.5 if largest > 0 else 2.0))
    results = sample(np.full((1, 3), largest, np.float32), plan_of([Asked(of, memory_of(of, [], [0, 1, 2]))]))
    assert results.status.tolist() == [RowStatus.NOT_A_NUMBER]


ANY_RULE: tuple[Rule, ...] = (
    RepetitionPenalty(1.7),
    RepetitionPenalty(0.3),
    FrequencyPenalty(2.0),
    Temperature(0.02),
    Temperature(50.0),
    DynamicTemperature(0.0, 3.0, 0.7),
    TopK(3),
    TopP(0.0),
    TopP(0.7),
    TopP(0.3, strict=True),
    MinP(0.2),
    MinP(1.0),
    Typical(0.0),
    Typical(0.5),
    Epsilon(1.0),
    Epsilon(0.02),
    Eta(0.5),
    TopA(0.7),
    TopNSigma(0.0),
    TopNSigma(1.1),
    TailFree(0.0),
    TailFree(0.8),
    TopH(0.0),
    TopH(0.5),
    TopH(0.6, 20, True),
    PLess(),
    Xtc(1.0, 0.0),
    Xtc(1.0, 0.2),
    Mirostat(1, 0.1),
    Mirostat(1, 4.0),
    Mirostat(2, 0.1),
    AdaptiveP(0.4),
)


def any_row(kind: int, rng: np.random.Generator, size: int) -> Float32Array:
    normal = rng.standard_normal(size)
    row = (
        3 * normal,
        np.full(size, -7.25),
        np.round(normal),
        normal * 10.0 ** rng.integers(-44, 39, size),
        3e38 * np.sign(normal),
        np.where(rng.random(size) < 0.9, -np.inf, normal),
        1e-44 * np.round(3 * normal),
        np.where(np.arange(size) == size // 2, 100.0, normal),
    )[kind]
    if not (row > -np.inf).any():
        row[0] = 0.0
    with np.errstate(over="ignore"):
        return np.clip(row, -3.4e38, 3.4e38, where=row > -np.inf, out=row.copy()).astype(np.float32)


@pytest.mark.parametrize("kind", range(8))
def test_a_truncation_alone_never_empties_a_row_and_no_figure_is_nan(kind: int) -> None:
    """Each rule and stacks of them, on rows to the ends of float32."""
    rng = np.random.default_rng(kind)
    stacks = [[rule] for rule in ANY_RULE] + [
        [ANY_RULE[i] for i in rng.permutation(len(ANY_RULE))[: rng.integers(2, 7)]] for _ in range(60)
    ]
    for rules in stacks:
        row = any_row(kind, rng, int(rng.choice([1, 2, 3, 50])))
        of = chain(Witness(), *rules)
        plan = plan_of([Asked(of, memory_of(of, [0], [0, 0]), key=int(rng.integers(2**60)))], num_logprobs=3)
        results = sample(row[None], plan)
        for field in fields(RowResults):
            assert not np.isnan(getattr(results, field.name)).any()
        divides = any(isinstance(r, (RepetitionPenalty, Temperature, DynamicTemperature)) for r in rules)
        if not divides:
            assert results.status.tolist() == [RowStatus.OK]
        if results.status[0] == RowStatus.OK:
            assert row[results.tokens[0]] > -np.inf
            assert results.kept[0] >= 1
            assert results.processed_logprobs[0] > -30


# Draws


def test_greedy_top_k_one_and_temperature_zero_agree() -> None:
    rng = np.random.default_rng(0)
    logits = np.stack([any_row(kind, rng, 100) for kind in (0, 1, 2, 5, 7)])
    for settings in ({"temperature": 0}, {"top_k": 1}, {"temperature": 0.5, "top_k": 1}):
        of = Chain(rules_of(**settings))
        results = sample(logits, plan_of(Asked(of, key=9, row=r) for r in range(len(logits))))
        np.testing.assert_array_equal(results.tokens, logits.argmax(axis=1))
        np.testing.assert_array_equal(results.processed_logprobs, 0)


def test_a_draw_depends_on_key_position_and_sample_index_not_on_the_batch() -> None:
    logits = np.stack([random_row(50, r) for r in range(6)])
    of = chain(RepetitionPenalty(1.5), *SPICED.rules)
    asked = [
        Asked(of, memory_of(of, [], [r, 7]), key=mix(r), position=3 * r, sample_index=r % 2, row=r)
        for r in range(6)
    ]
    together = sample(logits, plan_of(asked, num_logprobs=4))
    for n in np.random.default_rng(1).permutation(6).tolist():
        alone = sample(logits[n : n + 1], plan_of([replace(asked[n], row=0)], num_logprobs=4))
        assert_same_rows(alone, 0, together, n)


def test_a_seed_holds_whatever_the_neighbours_have() -> None:
    logits = np.stack([random_row(50, r) for r in range(3)])
    seeded = Asked(SPICED, key=mix(5), position=4, row=1)
    alone = sample(logits, plan_of([seeded]))
    for other in range(20):
        strangers = [Asked(SPICED, key=mix(100 + other), position=9), Asked(key=mix(other), row=2)]
        for n in range(3):
            together = sample(logits, plan_of([*strangers[:n], seeded, *strangers[n:]]))
            assert_same_rows(together, n, alone, 0)


def test_samples_positions_and_seeds_draw_differently() -> None:
    logits = np.zeros((1, 1000), np.float32)
    for asked in (
        [Asked(sample_index=i) for i in range(8)],
        [Asked(position=i) for i in range(8)],
        [Asked(key=mix(i)) for i in range(8)],
    ):
        assert len(set(sample(logits, plan_of(asked)).tokens.tolist())) == 8


def test_a_token_of_probability_1e_9_is_drawn_under_some_bits() -> None:
    law = after(log_of([1 - 1e-9, 1e-9]))
    assert law.weights[1] == pytest.approx(2**40 * 1e-9, rel=1e-3)

    def ratios(bits: int, tail: int) -> npt.NDArray[np.float64]:
        other = 2**31  # the probable token's noise: its median
        return (
            exponentials_of_bits(np.array([other, bits], np.uint32), np.array([0, tail], np.uint32))
            / law.weights
        )

    # It is drawn when v < 1 - exp(-1e-9 log 2), about 6.9e-10: 2.98 of 2^32 bits, continued by the tail.
    assert np.argmin(ratios(2, 0)) == 1
    assert np.argmin(ratios(2, int(0.97 * 2**32))) == 1
    assert np.argmin(ratios(2, int(0.99 * 2**32))) == 0
    assert np.argmin(ratios(3, 0)) == 0


@pytest.mark.parametrize("rules", [(), (Temperature(0.9),), (TopK(2),), (MinP(1e-10),), (Xtc(1.0, 0.5),)])
def test_a_chain_leaves_a_thin_tail_reachable(rules: tuple[Rule, ...]) -> None:
    """Of tokens with a probability near 1e-9 the share of all bits that draws them is that."""
    law = after(log_of([1 - 1e-9, 1e-9]), *rules)
    p = float(law.probabilities[1])
    assert 1e-13 < p < 1e-8
    # Against the other's E = 1 it wins for v below 1 - exp(-w / w_other): bisect its 64 bits.
    low, high = 0, 2**64 - 1
    while high - low > 1:
        middle = (low + high) // 2
        bits, tail = np.array([middle >> 32], np.uint32), np.array([middle & (2**32 - 1)], np.uint32)
        wins = exponentials_of_bits(bits, tail)[0] / law.weights[1] < 1.0 / law.weights[0]
        low, high = (middle, high) if wins else (low, middle)
    assert low / 2.0**64 == pytest.approx(p, rel=1e-5)
    assert low > 2**16  # many bits, and not one, decide


# Reports


def test_logprobs_are_given_before_and_after_the_rules_both() -> None:
    logits = log_of([0.5, 0.25, 0.125, 0.125])[None]
    results = sample(logits, plan_of([Asked(chain(TopK(2)), key=k) for k in range(20)], num_logprobs=3))
    assert set(results.tokens.tolist()) == {0, 1}
    raw, processed = np.log([0.5, 0.25]), np.log([2 / 3, 1 / 3])
    np.testing.assert_allclose(results.logprobs, raw[results.tokens], rtol=1e-6)
    np.testing.assert_allclose(results.processed_logprobs, processed[results.tokens], rtol=1e-6)
    np.testing.assert_array_equal(results.ranks, results.tokens)
    np.testing.assert_allclose(results.entropies, 1.75 * np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(results.kept, 2)
    np.testing.assert_array_equal(results.top_tokens[0], [[0, 1, 2]] * 20)
    np.testing.assert_array_equal(results.top_tokens[1], [[0, 1, -1]] * 20)
    np.testing.assert_allclose(results.top_logprobs[0, 0], [np.log([0.5, 0.25, 0.125])] * 20, rtol=1e-6)
    np.testing.assert_allclose(results.top_logprobs[0, 1, :, :2], [processed] * 20, rtol=1e-6)
    np.testing.assert_allclose(results.top_logprobs[1, 0, :, :2], [raw] * 20, rtol=1e-6)
    np.testing.assert_allclose(results.top_logprobs[1, 1, :, :2], [processed] * 20, rtol=1e-6)
    assert (results.top_logprobs[0, 1, :, 2] == -np.inf).all()
    assert (results.top_logprobs[1, :, :, 2] == -np.inf).all()


def test_the_most_probable_after_the_rules_may_be_others_than_before() -> None:
    of = chain(LogitBias(((0, -5.0), (3, 4.0))))
    results = sample(
        log_of([0.5, 0.25, 0.125, 0.125])[None], plan_of([Asked(of, memory_of(of))], num_logprobs=2)
    )
    assert results.top_tokens[:, 0].tolist() == [[0, 1], [3, 1]]
    changed = np.log([0.5 * np.exp(-5), 0.25, 0.125, 0.125 * np.exp(4)])
    changed -= np.logaddexp.reduce(changed)
    np.testing.assert_allclose(results.top_logprobs[0, 1, 0], changed[[0, 1]], rtol=1e-5)
    np.testing.assert_allclose(results.top_logprobs[1, 1, 0], changed[[3, 1]], rtol=1e-5)
    np.testing.assert_allclose(results.top_logprobs[1, 0, 0], np.log([0.125, 0.25]), rtol=1e-6)


def test_a_given_token_has_its_figures_and_nothing_is_drawn() -> None:
    logits = log_of([0.125, 0.5, 0.25, 0.125])
    logits = np.append(logits, np.float32(-np.inf))
    of = chain(Witness(), TopK(2))
    results = sample(logits[None], plan_of([Asked(of, given=token) for token in range(5)]))
    assert results.tokens.tolist() == [0, 1, 2, 3, 4]
    assert results.ranks.tolist() == [2, 0, 1, 3, 4]
    np.testing.assert_allclose(results.logprobs, logits, rtol=1e-6)
    np.testing.assert_allclose(results.processed_logprobs[1:3], np.log([2 / 3, 1 / 3]), rtol=1e-6)
    assert (results.processed_logprobs[[0, 3, 4]] == -np.inf).all()
    np.testing.assert_allclose(results.surprises, -results.logprobs)


def test_a_witness_sees_the_law_that_reaches_it() -> None:
    logits = log_of([0.5, 0.25, 0.125, 0.125])[None]
    for rules, surprise in (
        ((TopK(2), Witness(), TopK(1)), -np.log(2 / 3)),
        ((Witness(), TopK(2), TopK(1)), -np.log(0.5)),
        ((Witness(), TopK(2), Witness(), TopK(1)), -np.log(2 / 3)),
        ((TopK(1), Witness()), 0.0),
        ((TopK(1),), 0.0),
    ):
        results = sample(logits, plan_of([Asked(chain(*rules))]))
        np.testing.assert_allclose(results.surprises, [surprise], atol=1e-6)


def test_a_law_is_what_is_drawn_from() -> None:
    logits = random_row(30, 4)[None]
    plan = plan_of([Asked(SPICED, key=k) for k in range(300)])
    ((status, ids, left), *_) = laws(logits, plan)
    results = sample(logits, plan)
    assert status == RowStatus.OK
    assert set(results.tokens.tolist()) <= set(ids.tolist())
    assert (results.kept == len(ids)).all()
    p = np.exp(left - np.logaddexp.reduce(left))
    expected = dict(zip(ids.tolist(), np.log(p).tolist(), strict=True))
    for token, logprob in zip(results.tokens.tolist(), results.processed_logprobs.tolist(), strict=True):
        assert logprob == pytest.approx(expected[token], abs=1e-5)


def test_a_memory_is_as_it_was_after_a_row_was_planned() -> None:
    of = chain(FrequencyPenalty(0.5), NoRepeatNgram(2))
    memory = memory_of(of, [], [1, 2, 1])
    assert memory is not None
    asked = Asked(of, memory)
    before = asked.entries()
    sample(np.zeros((1, 4), np.float32), plan_of([asked]))
    assert asked.entries() == before
    memory.extend(2, UNMOVED)
    assert asked.entries() != before
