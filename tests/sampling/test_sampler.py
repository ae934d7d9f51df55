"""The reference sampler: statuses, the law of its draws, and what a draw depends on."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.sampling.rows import Planned, assert_drawn_from, draws_of, log_of, plan_of, row_of, sample_natively
from unspool.sampling.chain import Chain, compile_chain
from unspool.sampling.noise import exponentials_of_bits, mix
from unspool.sampling.plan import RowResults, RowStatus
from unspool.sampling.rules import RuleState
from unspool.sampling.sampler import law_of, sample

SPICED = compile_chain(temperature=0.8, top_k=20, top_p=0.9)


def test_greedy_top_k_one_and_temperature_zero_agree() -> None:
    rng = np.random.default_rng(0)
    logits = np.stack([row_of(kind, 100, rng) for kind in ("random", "flat", "tied", "zeros", "banned")])
    for chain in (
        compile_chain(temperature=0),
        compile_chain(top_k=1),
        compile_chain(temperature=0.5, top_k=1),
    ):
        results = sample(logits, plan_of(Planned(chain, key=9, row=r) for r in range(len(logits))))
        np.testing.assert_array_equal(results.tokens, logits.argmax(axis=1))
        np.testing.assert_array_equal(results.processed_logprobs, 0)


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ([0, np.nan, 1], RowStatus.NOT_A_NUMBER),
        ([0, np.inf, 1], RowStatus.NOT_A_NUMBER),
        ([-np.inf, -np.inf, np.nan], RowStatus.NOT_A_NUMBER),
        ([-np.inf, -np.inf, -np.inf], RowStatus.EMPTY),
        ([3e38, 1, 0], RowStatus.NOT_A_NUMBER),  # the temperature below takes it beyond float32
        ([-3e38, -3e38, -np.inf], RowStatus.NOT_A_NUMBER),
        ([-np.inf, 3, -np.inf], RowStatus.OK),
    ],
)
def test_a_row_without_a_law_has_a_status_and_no_token(row: list[float], status: RowStatus) -> None:
    logits = np.array([row, [0, 1, 2]], np.float32)
    plan = plan_of([Planned(compile_chain(temperature=0.1)), Planned(row=1)], num_logprobs=2)
    results = sample(logits, plan)
    assert results.status.tolist() == [status, RowStatus.OK]
    assert (results.tokens[0] == -1) == (status != RowStatus.OK)
    assert results.tokens[1] >= 0
    for field in fields(RowResults):
        assert not np.isnan(getattr(results, field.name)).any()


def test_a_draw_depends_on_key_position_and_sample_index_not_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    logits = np.stack([row_of("random", 50, rng) for _ in range(6)])
    planned = [
        Planned(SPICED, [r, 7], key=mix(r), position=3 * r, sample_index=r % 2, row=r) for r in range(6)
    ]
    together = sample(logits, plan_of(planned))
    for n in rng.permutation(6).tolist():
        alone = sample(logits[n : n + 1], plan_of([replace(planned[n], row=0)]))
        for name in ("integers", "figures"):
            np.testing.assert_array_equal(getattr(alone, name)[:, 0], getattr(together, name)[:, n])
        for name in ("top_tokens", "top_logprobs"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[n])


def test_samples_positions_and_seeds_draw_differently() -> None:
    logits = np.zeros((1, 1000), np.float32)
    for planned in (
        [Planned(sample_index=i) for i in range(8)],
        [Planned(position=i) for i in range(8)],
        [Planned(key=mix(i)) for i in range(8)],
    ):
        assert len(set(sample(logits, plan_of(planned)).tokens.tolist())) == 8


def test_a_token_of_probability_1e_9_is_drawn_under_some_bits() -> None:
    law = law_of(log_of([1 - 1e-9, 1e-9]))
    assert law.weights[1] == pytest.approx(2**40 * 1e-9, rel=1e-3)

    def ratios(bits: int, tail: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
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


@pytest.mark.parametrize(
    "chain",
    [
        Chain(),
        compile_chain(temperature=0.7),
        compile_chain(temperature=1.5, top_k=10),
        compile_chain(top_p=0.85),
        compile_chain(min_p=0.05),
        compile_chain(repetition_penalty=1.5, temperature=1.3, min_p=0.02, top_k=25, top_p=0.95),
        compile_chain(top_p=0.9, temperature=2, order=("top_p", "temperature")),
    ],
)
@pytest.mark.parametrize("draws", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_draws_follow_the_law(chain: Chain, draws: int) -> None:
    logits = row_of("random", 40, np.random.default_rng(5))[None]
    seen = [1, 5, 30]
    law = law_of(logits[0], chain.rules, RuleState(np.array(seen, np.int32)))
    probabilities = np.zeros(40)
    probabilities[law.ids] = law.probabilities
    results = sample_natively(logits, draws_of(chain, draws, seen), threads=2)
    assert_drawn_from(probabilities, np.bincount(results.tokens, minlength=40))


def test_sequences_with_a_penalty_follow_their_enumerated_law() -> None:
    vocabulary, length, count = 4, 3, 20_000
    model = row_of("random", vocabulary * vocabulary, np.random.default_rng(6)).reshape(
        vocabulary, vocabulary
    )
    chain = compile_chain(repetition_penalty=1.8, temperature=0.9, top_p=0.97)

    exact = np.zeros((vocabulary,) * length)
    for sequence in itertools.product(range(vocabulary), repeat=length):
        probability, last = 1.0, 0
        for i, token in enumerate(sequence):
            law = law_of(model[last], chain.rules, RuleState(np.array(sequence[:i], np.int32)))
            probability *= float(law.probabilities[law.ids == token].sum())
            last = token
        exact[sequence] = probability
    assert exact.sum() == pytest.approx(1)

    drawn = np.zeros((count, 0), np.int32)
    for i in range(length):
        before = drawn[:, -1] if i else np.zeros(count, np.int32)
        plan = plan_of(
            Planned(chain, drawn[n].tolist(), key=mix(11), position=i, sample_index=n, row=int(before[n]))
            for n in range(count)
        )
        drawn = np.column_stack([drawn, sample_natively(model, plan).tokens])
    counts = np.zeros_like(exact, np.int64)
    np.add.at(counts, tuple(drawn.T), 1)
    assert_drawn_from(exact.ravel(), counts.ravel())


def test_logprobs_are_raw_and_processed_both() -> None:
    logits = log_of([0.5, 0.25, 0.125, 0.125])[None]
    results = sample(
        logits, plan_of([Planned(compile_chain(top_k=2), key=k) for k in range(20)], num_logprobs=3)
    )
    assert set(results.tokens.tolist()) == {0, 1}
    raw, processed = np.log([0.5, 0.25]), np.log([2 / 3, 1 / 3])
    np.testing.assert_allclose(results.logprobs, raw[results.tokens], rtol=1e-6)
    np.testing.assert_allclose(results.processed_logprobs, processed[results.tokens], rtol=1e-6)
    np.testing.assert_array_equal(results.ranks, results.tokens)
    np.testing.assert_allclose(results.entropies, 1.75 * np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(results.kept, 2)
    np.testing.assert_array_equal(results.top_tokens, [[0, 1, 2]] * 20)
    np.testing.assert_allclose(results.top_logprobs[0], np.log([0.5, 0.25, 0.125]), rtol=1e-6)
