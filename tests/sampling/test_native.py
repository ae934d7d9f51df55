"""The native sampler's seams: rows in parts, faulty rows, ties, given tokens, and plans that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

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
    assert_same,
    assert_same_laws,
    entry,
    laws_natively,
    row_of,
    sample_natively,
)
from unspool import _native
from unspool.sampling.noise import mix
from unspool.sampling.plan import RowResults, RowStatus, RuleKind, SamplePlan, Ties
from unspool.sampling.sampler import laws, sample

SIZES = (1, 3, 15, 16, 17, 127, 128, 129, 1000, 4099)


@cache
def case(size: int, rows_each: int) -> tuple[Float32Array, SamplePlan, RowResults]:
    """Rows of every kind, random stacks over them, and what the reference makes of that."""
    rng = np.random.default_rng(size)
    logits = np.stack([row_of(kind, size, rng) for kind in ROW_KINDS])
    planned = [
        Planned(
            stack=any_stack(rng, size),
            key=mix(int(rng.integers(2**63))),
            position=int(rng.integers(2**31)),
            sample_index=int(rng.integers(100)),
            row=row,
        )
        for row in range(len(logits))
        for _ in range(rows_each)
    ]
    plan = plan_of(planned, num_logprobs=5)
    return logits, plan, sample(logits, plan)


@settings(deadline=None, max_examples=150)
@given(
    z=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, 2.0, -3.0, -np.inf]), st.floats(width=32, allow_nan=False)),
        min_size=1,
        max_size=40,
    ),
    seed=st.integers(0, 2**32),
)
def test_small_rows_equal_the_reference(z: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = np.array([z], np.float32)
    plan = plan_of(
        [Planned(stack=any_stack(rng, len(z)), key=seed, position=p) for p in range(4)], num_logprobs=3
    )
    expected, expected_laws = sample(logits, plan), laws(logits, plan)
    for instruction_set in INSTRUCTION_SETS:
        assert_same(expected, sample_natively(logits, plan, instruction_set))
        assert_same_laws(expected_laws, laws_natively(logits, plan, instruction_set))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("ties", Ties)
def test_ties_across_a_boundary_are_those_that_the_entry_says(ties: Ties, instruction_set: str) -> None:
    for size in (40, 700, 5000):
        logits = np.full((1, size), -5.0, np.float32)
        tied = np.sort(np.random.default_rng(size).permutation(size)[:30])
        logits[0, tied] = 3.0
        for stack in (
            (entry(RuleKind.TOP_K, 7, ties),),
            (entry(RuleKind.TEMPERATURE, 0.3), entry(RuleKind.TOP_K, 7, ties)),
            (entry(RuleKind.TOP_P, 0.2, ties),),
        ):
            plan = plan_of(Planned(stack=stack, key=key) for key in range(100))
            got = sample_natively(logits, plan, instruction_set)
            assert_same(sample(logits, plan), got)
            count = int(got.kept[0])
            assert count == 30 if ties == Ties.ALL else count < 10
            kept = tied[-count:] if ties == Ties.HIGHEST_ID else tied[:count]
            assert set(got.tokens.tolist()) <= set(kept.tolist())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_faulty_rows_get_a_status_and_spare_their_neighbours(instruction_set: str) -> None:
    rng = np.random.default_rng(3)
    logits = np.stack([row_of("random", 300, rng) for _ in range(7)])
    logits[1, 299] = np.nan
    logits[2, 0] = np.inf
    logits[3] = -np.inf
    logits[4] = np.nan
    logits[5] *= np.float32(1e37)
    stack = (entry(RuleKind.TEMPERATURE, 0.01), entry(RuleKind.TOP_K, 5))
    plan = plan_of([Planned(stack=stack, row=r) for r in range(7)], num_logprobs=2)
    expected = sample(logits, plan)
    assert expected.status.tolist() == [0, 1, 1, 2, 1, 1, 0]
    assert_same(expected, sample_natively(logits, plan, instruction_set))
    assert_same_laws(laws(logits, plan), laws_natively(logits, plan, instruction_set))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_row_that_rules_ban_empty_has_that_status(instruction_set: str) -> None:
    logits = np.zeros((1, 200), np.float32)
    everything = range(200)
    over = entry(RuleKind.ADD, tokens=[5, 6], amounts=[3e38, 0])
    statuses = [
        ((entry(RuleKind.BAN, tokens=everything),), RowStatus.EMPTY),
        ((entry(RuleKind.TOP_K, 3), entry(RuleKind.BAN, tokens=range(3))), RowStatus.EMPTY),
        ((entry(RuleKind.BAN, tokens=[9]), entry(RuleKind.ALLOW, tokens=[9])), RowStatus.EMPTY),
        ((entry(RuleKind.ADD, tokens=everything, amounts=[-np.inf] * 200),), RowStatus.EMPTY),
        ((over, over), RowStatus.NOT_A_NUMBER),
        ((over,), RowStatus.OK),
    ]
    plan = plan_of([Planned(stack=stack) for stack, _ in statuses], num_logprobs=2)
    expected = sample(logits, plan)
    assert expected.status.tolist() == [status for _, status in statuses]
    assert_same(expected, sample_natively(logits, plan, instruction_set))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_token_of_probability_1e_9_is_drawn(instruction_set: str) -> None:
    size, key = 262_144, 12_986  # one of about 3,800 keys does
    logits = np.full((1, size), np.log(1e-9), np.float32)
    logits[0, 1000] = np.log(1 - 1e-9 * (size - 1))
    got = sample_natively(logits, plan_of([Planned(key=key)]), instruction_set)
    assert got.tokens[0] != 1000
    assert got.logprobs[0] == pytest.approx(np.log(1e-9), abs=1e-4)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_given_token_is_reported_and_not_drawn(instruction_set: str) -> None:
    rng = np.random.default_rng(8)
    logits = np.stack([row_of("random", 300, rng), row_of("banned", 300, rng)])
    stacks = ((), (entry(RuleKind.WITNESS), entry(RuleKind.TOP_K, 9)), (entry(RuleKind.TEMPERATURE, 0.5),))
    asked = [
        Planned(stack=stack, row=row, given=token)
        for stack in stacks
        for row in range(2)
        for token in (0, int(logits[row].argmax()), int(logits[row].argmin()), 299)
    ]
    plan = plan_of(asked, num_logprobs=4)
    got = sample_natively(logits, plan, instruction_set)
    assert got.tokens.tolist() == [row.given for row in asked]
    assert_same(sample(logits, plan), got)


def test_threads_and_the_stride_of_rows_change_nothing() -> None:
    logits, plan, expected = case(1000, 12)
    expected_laws = laws(logits, plan)
    wide = np.full((len(logits), 1100), np.nan, np.float32)
    wide[:, :1000] = logits
    for threads in (1, 2, 3):
        assert_same(expected, sample_natively(wide[:, :1000], plan, threads=threads))
        assert_same_laws(expected_laws, laws_natively(wide[:, :1000], plan, threads=threads))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("size", [*SIZES, 49_152])
def test_a_row_that_workers_share_equals_the_reference(size: int, instruction_set: str) -> None:
    """A plan of one row is surveyed and weighed in parts, here by fewer and by more workers than it has."""
    rng = np.random.default_rng(size)
    rows = [row_of(kind, size, rng) for kind in ROW_KINDS]
    for fault in (np.nan, np.inf, -np.inf):
        rows.append(row_of("random", size, rng))
        rows[-1][-1] = fault
    rows.append(np.full(size, -np.inf, np.float32))
    pools = [_native.Pool(threads) for threads in (1, 2, 5)] + [_native.Pool(17)] * (size <= 1000)
    for row in rows:
        plan = plan_of([Planned(stack=any_stack(rng, size), key=size)], num_logprobs=5)
        expected, expected_laws = sample(row[None], plan), laws(row[None], plan)
        for pool in pools:
            got = _native.sample(pool, instruction_set, row[None], *plan.arrays())
            assert_same(expected, RowResults(*got))
            found = _native.laws(pool, instruction_set, row[None], *plan.arrays())
            assert_same_laws(expected_laws, [(RowStatus(s), ids, left) for s, ids, left in found])


def test_rows_may_lie_in_any_order_in_memory() -> None:
    logits, plan, expected = case(129, 12)
    upside_down = logits[::-1].copy()[::-1]
    assert upside_down.strides[0] < 0
    assert_same(expected, sample_natively(upside_down, plan, threads=2))


def test_an_empty_plan_gives_empty_results() -> None:
    logits = np.zeros((1, 4), np.float32)
    assert len(sample_natively(logits, plan_of([])).tokens) == 0
    assert laws_natively(logits, plan_of([])) == []


def broken(**arrays: Any) -> Callable[[SamplePlan], SamplePlan]:
    return lambda plan: replace(plan, **arrays)


def with_values(place: int, *values: float) -> Callable[[SamplePlan], SamplePlan]:
    def change(plan: SamplePlan) -> SamplePlan:
        plan.values = plan.values.copy()
        plan.values[place] = values
        return plan

    return change


ENTRIES = (
    entry(RuleKind.TEMPERATURE, 0.5),
    entry(RuleKind.TOP_K, 3),
    entry(RuleKind.ADD, tokens=[1, 2, 3], amounts=[0.5, -np.inf, 1]),
    entry(RuleKind.ALLOW, tokens=[0, 4]),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (broken(rows=np.array([0, 2], np.int32)), r"rows\[1\] is 2, not in 0..1"),
        (broken(rows=np.array([0, -1], np.int32)), r"rows\[1\] is -1"),
        (broken(tokens=np.array([0, 1, 9, 0, 4], np.int32)), r"tokens\[2\] is 9, not in 0..8"),
        (broken(tokens=np.array([0, 1, 2, 4, 0], np.int32)), "allowed tokens of entry 3 do not ascend"),
        (broken(tokens=np.array([0, 1, 2, 4, 4], np.int32)), "allowed tokens of entry 3 do not ascend"),
        (broken(amounts=np.array([0, 1, np.nan, 0, 0], np.float32)), r"amounts\[2\] is -?nan"),
        (broken(amounts=np.array([0, np.inf, 0, 0, 0], np.float32)), r"amounts\[1\] is inf"),
        (broken(amounts=np.zeros(4, np.float32)), "amounts has 4 elements and needs 5"),
        (broken(token_starts=np.array([0, 0, 0, 3, 4], np.int64)), "token_starts must rise from 0 to 5"),
        (broken(token_starts=np.array([0, 0, 5, 3, 5], np.int64)), "token_starts must rise from 0 to 5"),
        (broken(token_starts=np.array([0, 5], np.int64)), "token_starts has 2 elements and needs 5"),
        (broken(chain_starts=np.array([1, 2, 4], np.int32)), "chain_starts must rise from 0 to 4"),
        (broken(chain_starts=np.array([0, 4], np.int32)), "chain_starts has 2 elements and needs 3"),
        (broken(keys=np.zeros(1, np.uint64)), "keys has 1 elements and needs 2"),
        (broken(given=np.zeros(1, np.int32)), "given has 1 elements and needs 2"),
        (broken(given=np.array([-2, 0], np.int32)), r"given\[0\] is -2, not in -1..8"),
        (broken(given=np.array([-1, 9], np.int32)), r"given\[1\] is 9"),
        (broken(values=np.zeros((1, 3))), r"values has the shape \[1, 3\] and needs \[4, 3\]"),
        (broken(values=np.zeros((4, 2))), r"values has the shape \[4, 2\] and needs \[4, 3\]"),
        (broken(kinds=np.array([99, 3, 6, 8], np.int32)), "no rule of kind 99"),
        (with_values(0, 0.0, 0, 0), "temperature"),
        (with_values(0, np.nan, 0, 0), "temperature"),
        (with_values(1, 2.5, 0, 0), "top-k"),
        (with_values(1, 2, 3, 0), "ties"),
        (broken(positions=np.array([0, -1], np.int32)), "positions"),
        (broken(num_logprobs=33), "num_logprobs is 33, not in 0..32"),
        (broken(num_logprobs=-1), "num_logprobs"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    change: Callable[[SamplePlan], SamplePlan], message: str
) -> None:
    plan = plan_of([Planned(stack=ENTRIES), Planned(row=1)])
    logits = np.zeros((2, 9), np.float32)
    sample_natively(logits, plan)
    changed = change(plan)
    with pytest.raises(ValueError, match=message):
        sample_natively(logits, changed)
    with pytest.raises(ValueError, match=message):
        laws_natively(logits, changed)


OUT_OF_RANGE: dict[RuleKind, tuple[tuple[float, ...], ...]] = {
    RuleKind.REPETITION_PENALTY: ((0,), (2e4,)),
    RuleKind.TEMPERATURE: ((1e-10,), (2e9,)),
    RuleKind.TOP_K: ((0,), (2.0**53,), (1, -1)),
    RuleKind.TOP_P: ((-0.1,), (1.1,), (0.5, 5), (0.5, 0, 2)),
    RuleKind.MIN_P: ((-0.1,), (1.1,)),
    RuleKind.DYNAMIC_TEMPERATURE: ((-1, 1, 1), (2, 1, 1), (0, 2e9, 1), (0, 1, 0), (0, 1, 101)),
    RuleKind.TOP_N_SIGMA: ((-1,), (2e6,)),
    RuleKind.TYPICAL: ((1.5,), (0.5, 0.5)),
    RuleKind.EPSILON: ((-1,), (1.5,)),
    RuleKind.ETA: ((-1,), (1.5,)),
    RuleKind.TOP_A: ((-1,), (1.5,)),
    RuleKind.TAIL_FREE: ((-1,), (1.5,)),
    RuleKind.TOP_H: ((1.5,), (0.5, -1), (0.5, 1.5), (0.5, 0, 2)),
    RuleKind.XTC: ((1.5, 0.1), (0.5, 1.5)),
    RuleKind.MIROSTAT_1: ((np.inf,),),
    RuleKind.ADAPTIVE_P: ((-0.5,),),
}


@pytest.mark.parametrize(
    ("kind", "values"), [(kind, values) for kind, of_kind in OUT_OF_RANGE.items() for values in of_kind]
)
def test_a_value_out_of_its_range_is_refused(kind: RuleKind, values: tuple[float, ...]) -> None:
    for wrong in (values, (np.nan, *values[1:])):
        plan = plan_of([Planned(stack=(entry(kind, *wrong),))])
        with pytest.raises(ValueError, match="sample:"):
            sample_natively(np.zeros((1, 9), np.float32), plan)


def test_arrays_of_another_type_are_refused_not_cut_to_fit() -> None:
    plan = plan_of([Planned()])
    for name in ("rows", "tokens", "amounts", "keys", "positions", "values", "given"):
        wrong: dict[str, Any] = {name: np.zeros(1, np.int16)}
        with pytest.raises(TypeError):
            sample_natively(np.zeros((1, 9), np.float32), replace(plan, **wrong))
    with pytest.raises(TypeError):
        sample_natively(np.zeros((1, 9), np.float32), replace(plan, values=np.zeros((2, 3), order="F")))


def test_logits_of_another_kind_are_refused() -> None:
    plan = plan_of([Planned()])
    pool = _native.Pool(1)
    others: list[Any] = [np.zeros((1, 9)), np.zeros(9, np.float32)]
    for logits in others:
        with pytest.raises(TypeError):
            _native.sample(pool, "auto", logits, *plan.arrays())
    with pytest.raises(ValueError, match="contiguous"):
        _native.sample(pool, "auto", np.zeros((1, 18), np.float32)[:, ::2], *plan.arrays())
    with pytest.raises(ValueError, match="vocabulary"):
        _native.sample(pool, "auto", np.zeros((1, 0), np.float32), *plan.arrays())
    with pytest.raises(ValueError, match="not available"):
        _native.sample(pool, "quantum", np.zeros((1, 9), np.float32), *plan.arrays())
