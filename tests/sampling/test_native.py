"""The native sampler gives the reference's bits, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.rows import (
    INSTRUCTION_SETS,
    ROW_KINDS,
    Float32Array,
    Planned,
    assert_same,
    plan_of,
    row_of,
    sample_natively,
)
from unspool import _native
from unspool.sampling.chain import DEFAULT_ORDER, Chain, compile_chain
from unspool.sampling.noise import mix
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import sample

SIZES = (1, 3, 8, 15, 16, 17, 127, 128, 129, 1000, 4099)
LARGE_SIZES = (49_152, 262_144)


def any_chain(rng: np.random.Generator, size: int) -> Chain:
    """Random rules in a random order, any of them absent."""
    values: dict[str, float | int] = {
        "repetition_penalty": float(rng.choice([0.5, 1.1, 1.3, 5.0])),
        "temperature": float(rng.choice([0.01, 0.3, 0.7, 1.4, 30.0])),
        "min_p": float(rng.choice([1e-12, 1e-4, 0.02, 0.1, 0.5, 1.0])),
        "top_k": int(rng.choice([1, 2, 5, 50, max(1, size // 2), size, size + 5])),
        "top_p": float(rng.choice([0.0, 0.1, 0.5, 0.9, 0.99, 1 - 1e-9])),
    }
    order = rng.permutation(DEFAULT_ORDER).tolist()
    chosen = {name: values[name] for name in order if rng.random() < 0.6}
    return compile_chain(**chosen, order=order)  # type: ignore[arg-type]  # top_k is an int


@cache
def case(size: int, rows_each: int) -> tuple[Float32Array, SamplePlan, RowResults]:
    """Rows of every kind, random chains over them, and what the reference makes of that."""
    rng = np.random.default_rng(size)
    logits = np.stack([row_of(kind, size, rng) for kind in ROW_KINDS])
    planned = [
        Planned(
            any_chain(rng, size),
            rng.integers(0, size, rng.integers(0, 40)).tolist(),
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


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("size", SIZES)
def test_any_chain_on_any_row_equals_the_reference(size: int, instruction_set: str) -> None:
    logits, plan, expected = case(size, 12)
    assert_same(expected, sample_natively(logits, plan, instruction_set, threads=2))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("size", LARGE_SIZES)
def test_any_chain_on_a_large_vocabulary_equals_the_reference(size: int, instruction_set: str) -> None:
    logits, plan, expected = case(size, 2)
    assert_same(expected, sample_natively(logits, plan, instruction_set, threads=2))


@pytest.mark.slow
@pytest.mark.parametrize("size", [*SIZES, 49_152])
def test_many_chains_equal_the_reference(size: int) -> None:
    logits, plan, expected = case(size, 20 if size > 5000 else 400)
    for instruction_set in INSTRUCTION_SETS:
        assert_same(expected, sample_natively(logits, plan, instruction_set))


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
    history = rng.integers(0, len(z), 5).tolist()
    planned = [Planned(any_chain(rng, len(z)), history, key=seed, position=p) for p in range(4)]
    plan = plan_of(planned, num_logprobs=3)
    expected = sample(logits, plan)
    for instruction_set in INSTRUCTION_SETS:
        assert_same(expected, sample_natively(logits, plan, instruction_set))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_ties_across_a_boundary_go_to_the_lowest_ids(instruction_set: str) -> None:
    for size in (40, 700, 5000):
        logits = np.full((1, size), -5.0, np.float32)
        tied = np.random.default_rng(size).permutation(size)[:30]
        logits[0, tied] = 3.0
        for chain in (
            compile_chain(top_k=7),
            compile_chain(temperature=0.3, top_k=7),
            compile_chain(top_p=0.2),
        ):
            plan = plan_of(Planned(chain, key=key) for key in range(100))
            got = sample_natively(logits, plan, instruction_set)
            assert_same(sample(logits, plan), got)
            assert set(got.tokens.tolist()) <= set(np.sort(tied)[: got.kept[0]].tolist())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_faulty_rows_get_a_status_and_spare_their_neighbours(instruction_set: str) -> None:
    rng = np.random.default_rng(3)
    logits = np.stack([row_of("random", 300, rng) for _ in range(7)])
    logits[1, 299] = np.nan
    logits[2, 0] = np.inf
    logits[3] = -np.inf
    logits[4] = np.nan
    logits[5] *= np.float32(1e37)
    plan = plan_of(
        [Planned(compile_chain(temperature=0.01, top_k=5), row=r) for r in range(7)], num_logprobs=2
    )
    expected = sample(logits, plan)
    assert expected.status.tolist() == [0, 1, 1, 2, 1, 1, 0]
    assert_same(expected, sample_natively(logits, plan, instruction_set))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_token_of_probability_1e_9_is_drawn(instruction_set: str) -> None:
    size, key = 262_144, 12_986  # one of about 3,800 keys does
    logits = np.full((1, size), np.log(1e-9), np.float32)
    logits[0, 1000] = np.log(1 - 1e-9 * (size - 1))
    got = sample_natively(logits, plan_of([Planned(key=key)]), instruction_set)
    assert got.tokens[0] != 1000
    assert got.logprobs[0] == pytest.approx(np.log(1e-9), abs=1e-4)


def test_threads_and_the_stride_of_rows_change_nothing() -> None:
    logits, plan, expected = case(1000, 12)
    wide = np.full((len(logits), 1100), np.nan, np.float32)
    wide[:, :1000] = logits
    for threads in (1, 2, 3):
        assert_same(expected, sample_natively(wide[:, :1000], plan, threads=threads))


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
        plan = plan_of([Planned(any_chain(rng, size), [0, size - 1], key=size)], num_logprobs=5)
        expected = sample(row[None], plan)
        for pool in pools:
            got = _native.sample(pool, instruction_set, row[None], *plan.arrays())
            assert_same(expected, RowResults(*got))


def test_rows_may_lie_in_any_order_in_memory() -> None:
    logits, plan, expected = case(129, 12)
    upside_down = logits[::-1].copy()[::-1]
    assert upside_down.strides[0] < 0
    assert_same(expected, sample_natively(upside_down, plan, threads=2))


def test_an_empty_plan_gives_empty_results() -> None:
    results = sample_natively(np.zeros((1, 4), np.float32), plan_of([]))
    assert len(results.tokens) == 0


def broken(**arrays: Any) -> Callable[[SamplePlan], SamplePlan]:
    return lambda plan: replace(plan, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (broken(rows=np.array([0, 2], np.int32)), r"rows\[1\] is 2, not in 0..1"),
        (broken(rows=np.array([0, -1], np.int32)), r"rows\[1\] is -1"),
        (broken(history=np.array([0, 1, 9], np.int32)), r"history\[2\] is 9, not in 0..8"),
        (broken(history_starts=np.array([0, 2, 4], np.int64)), "history_starts must rise from 0 to 3"),
        (broken(history_starts=np.array([0, 4, 3], np.int64)), "history_starts must rise from 0 to 3"),
        (broken(chain_starts=np.array([1, 2, 2], np.int32)), "chain_starts must rise from 0 to 2"),
        (broken(chain_starts=np.array([0, 2], np.int32)), "chain_starts has 2 elements and needs 3"),
        (broken(keys=np.zeros(1, np.uint64)), "keys has 1 elements and needs 2"),
        (broken(values=np.zeros(1)), "values has 1 elements and needs 2"),
        (broken(kinds=np.array([9, 3], np.int32)), "no rule of kind 9"),
        (broken(values=np.array([0.0, 3])), "temperature"),
        (broken(values=np.array([np.nan, 3])), "temperature"),
        (broken(values=np.array([1.0, 2.5])), "top-k"),
        (broken(positions=np.array([0, -1], np.int32)), "positions"),
        (broken(num_logprobs=33), "num_logprobs is 33, not in 0..32"),
        (broken(num_logprobs=-1), "num_logprobs"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    change: Callable[[SamplePlan], SamplePlan], message: str
) -> None:
    chain = compile_chain(temperature=0.5, top_k=3)
    plan = plan_of([Planned(chain, [1, 2, 3]), Planned(row=1)])
    logits = np.zeros((2, 9), np.float32)
    sample_natively(logits, plan)
    with pytest.raises(ValueError, match=message):
        sample_natively(logits, change(plan))


def test_arrays_of_another_type_are_refused_not_cut_to_fit() -> None:
    plan = plan_of([Planned()])
    for name in ("rows", "history", "keys", "positions", "values"):
        wrong: dict[str, Any] = {name: np.zeros(1, np.int16)}
        with pytest.raises(TypeError):
            sample_natively(np.zeros((1, 9), np.float32), replace(plan, **wrong))


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
