"""Offers: native and reference to the bit, orders of the law and of the noise, rows of logarithms."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.plans import plan_of
from tests.sampling.rows import (
    INSTRUCTION_SETS,
    ROW_KINDS,
    Float32Array,
    Planned,
    any_stack,
    assert_drawn_from,
    entry,
    log_of,
    row_of,
)
from unspool import _native
from unspool.sampling.distribution import Distribution
from unspool.sampling.noise import mix
from unspool.sampling.offers import Offers, log_softmax, offers
from unspool.sampling.plan import RowStatus, RuleKind, SamplePlan
from unspool.sampling.sampler import laws, sample

SIZES = (1, 3, 16, 17, 129, 1000)


def offers_natively(
    logits: Float32Array, plan: SamplePlan, count: int, instruction_set: str = "auto", **wanted: bool
) -> Offers:
    asked = (count, wanted.get("perturbed", False), wanted.get("log_rows", False))
    return Offers(*_native.offers(_native.Pool(2), instruction_set, logits, *(*plan.arrays(), *asked)))


def assert_same_offers(expected: Offers, got: Offers) -> None:
    for field in fields(Offers):
        mine, theirs = getattr(expected, field.name), getattr(got, field.name)
        if field.name == "integers":
            mine, theirs = mine[1:], theirs[1:]  # the first row is not used
        np.testing.assert_array_equal(theirs, mine, field.name)


def random_plan(rng: np.random.Generator, logits: Float32Array, rows_each: int) -> SamplePlan:
    return plan_of(
        [
            Planned(
                stack=any_stack(rng, logits.shape[1]),
                key=mix(int(rng.integers(2**63))),
                position=int(rng.integers(2**31)),
                sample_index=int(rng.integers(100)),
                row=row,
            )
            for row in range(len(logits))
            for _ in range(rows_each)
        ],
        num_logprobs=3,
    )


@pytest.mark.parametrize("log_rows", [False, True])
@pytest.mark.parametrize("perturbed", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_native_offers_equal_the_reference(size: int, perturbed: bool, log_rows: bool) -> None:
    rng = np.random.default_rng(size)
    logits = np.stack([row_of(kind, size, rng) for kind in ROW_KINDS])
    plan = random_plan(rng, logits, 4)
    for count in {1, 9, size}:
        wanted = {"perturbed": perturbed, "log_rows": log_rows}
        expected = offers(logits, plan, count, **wanted)
        for instruction_set in INSTRUCTION_SETS:
            assert_same_offers(expected, offers_natively(logits, plan, count, instruction_set, **wanted))


@settings(deadline=None, max_examples=60)
@given(
    z=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, 2.0, -3.0, -np.inf]), st.floats(width=32, allow_nan=False)),
        min_size=1,
        max_size=30,
    ),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 12),
    perturbed=st.booleans(),
    log_rows=st.booleans(),
)
def test_small_rows_equal_the_reference(
    z: list[float], seed: int, count: int, perturbed: bool, log_rows: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = np.array([z], np.float32)
    plan = random_plan(rng, logits, 3)
    expected = offers(logits, plan, count, perturbed=perturbed, log_rows=log_rows)
    for instruction_set in INSTRUCTION_SETS:
        got = offers_natively(logits, plan, count, instruction_set, perturbed=perturbed, log_rows=log_rows)
        assert_same_offers(expected, got)


@pytest.mark.parametrize("size", [3, 17, 1000])
def test_offers_are_the_law_in_descending_order_with_the_figures_that_sampling_gives(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = np.stack([row_of(kind, size, rng) for kind in ROW_KINDS])
    plan = random_plan(rng, logits, 4)
    made = offers_natively(logits, plan, size)
    for n, (status, ids, z) in enumerate(laws(logits, plan)):
        assert made.status[n] == status
        if status:
            continue
        law = sorted(zip((-z).tolist(), ids.tolist(), strict=True))
        count = made.counts[n]
        assert made.tokens[n, :count].tolist() == [token for depth, token in law if depth < np.inf]
        for i in {0, count // 2, count - 1}:
            plan.given[n] = made.tokens[n, i]
        if count:
            results = sample(logits, plan)
            i = made.tokens[n, :count].tolist().index(plan.given[n])
            assert results.ranks[n] == made.ranks[n, i]
            assert results.kept[n] == made.kept[n]
            assert results.logprobs[n] == np.float32(made.logprobs[n, i])
            assert results.processed_logprobs[n] == np.float32(made.scores[n, i])
            assert results.surprises[n] == np.float32(made.surprises[n, i])
        plan.given[n] = -1


@pytest.mark.parametrize("size", SIZES)
def test_the_first_of_the_race_is_what_sampling_draws(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = np.stack([row_of(kind, size, rng) for kind in ROW_KINDS])
    plan = random_plan(rng, logits, 8)
    raced, drawn = offers_natively(logits, plan, 3, perturbed=True), sample(logits, plan)
    there = raced.status == RowStatus.OK
    assert there.any()
    np.testing.assert_array_equal(raced.tokens[there, 0], drawn.tokens[there])


def test_a_race_samples_without_replacement() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    logits = np.stack([log_of(p.tolist())])
    draws = 20_000
    plan = plan_of([Planned(stack=(), key=mix(7), position=i) for i in range(draws)])
    raced = offers_natively(logits, plan, 2, perturbed=True)
    counts = Counter(map(tuple, raced.tokens.tolist()))
    pairs = list(permutations(range(4), 2))
    law = np.array([p[a] * p[b] / (1 - p[a]) for a, b in pairs])
    assert_drawn_from(law, np.array([counts[pair] for pair in pairs]))
    noise = raced.perturbed
    assert np.all(noise[:, 0] >= noise[:, 1])
    assert abs(noise[:, 0].mean() - 0.5772) < 0.05  # the largest of all is a Gumbel variable of location 0
    assert abs(noise[:, 0].var() - np.pi**2 / 6) < 0.1


def test_rows_of_log_probabilities_are_log_softmax_and_keep_what_rules_leave_of_them() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (1, 500)).astype(np.float32)
    exact = logits[0].astype(np.float64)
    exact = exact - exact.max()
    exact = exact - np.log(np.exp(exact).sum())
    np.testing.assert_allclose(log_softmax(logits[0]), exact, atol=1e-6)
    halved = plan_of([Planned(stack=(entry(RuleKind.TEMPERATURE, 2.0),))])
    made = offers_natively(logits, halved, 5, log_rows=True)
    np.testing.assert_allclose(made.scores[0], exact[made.tokens[0]] / 2, atol=1e-6)
    law = Distribution.of(np.arange(500, dtype=np.int32), logits[0] / np.float32(2))
    np.testing.assert_allclose(made.processed_logprobs[0], law.log_probabilities[made.tokens[0]], atol=1e-5)
    assert np.all(made.processed_logprobs[0] < made.scores[0])  # which do not sum to 1


@pytest.mark.parametrize("count", [0, -1, 2**23])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    logits = np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match="count is"):
        offers_natively(logits, plan_of([Planned(stack=())]), count)
