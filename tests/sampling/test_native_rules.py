"""The native sampler gives the reference's bits for every kind of entry and for any stack of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling.plans import plan_of
from tests.sampling.rows import (
    INSTRUCTION_SETS,
    ROW_KINDS,
    Float32Array,
    Planned,
    any_entry,
    any_stack,
    assert_same,
    assert_same_laws,
    entry,
    laws_natively,
    row_of,
    sample_natively,
)
from unspool.sampling.noise import mix
from unspool.sampling.plan import DRAW, RowResults, RuleKind, SamplePlan
from unspool.sampling.sampler import Law, laws, sample

SIZES = (1, 3, 17, 128, 129, 1000)
NUM_LOGPROBS = 5

Case = tuple[Float32Array, SamplePlan, RowResults, list[Law]]


@cache
def case(size: int, each: int, kind: RuleKind | None = None, seed: int = 0) -> Case:
    """Rows of every character, each with so many chains, and what the reference makes of that.

    A chain is one entry of a kind, or where that is None any stack; some are for a given token.
    """
    rng = np.random.default_rng((size, kind or 0, seed))
    logits = np.stack([row_of(character, size, rng) for character in ROW_KINDS])
    planned = [
        Planned(
            stack=any_stack(rng, size) if kind is None else (any_entry(kind, rng, size),),
            key=mix(int(rng.integers(2**63))),
            position=int(rng.integers(2**31)),
            sample_index=int(rng.integers(100)),
            row=row,
            given=DRAW if rng.random() < 0.8 else int(rng.integers(size)),
        )
        for row in range(len(logits))
        for _ in range(each)
    ]
    plan = plan_of(planned, NUM_LOGPROBS)
    return logits, plan, sample(logits, plan), laws(logits, plan)


def assert_equals_the_reference(of: Case, instruction_set: str) -> None:
    logits, plan, expected, expected_laws = of
    got = sample_natively(logits, plan, instruction_set, threads=2)
    assert_same(expected, got)
    assert not np.isnan(got.figures).any()
    assert not np.isnan(got.top_logprobs).any()
    assert_same_laws(expected_laws, laws_natively(logits, plan, instruction_set, threads=2))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", RuleKind)
def test_any_entry_on_any_row(kind: RuleKind, size: int, instruction_set: str) -> None:
    assert_equals_the_reference(case(size, 3, kind), instruction_set)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("size", SIZES)
def test_any_stack_on_any_row(size: int, instruction_set: str) -> None:
    assert_equals_the_reference(case(size, 25), instruction_set)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("size", "each"), [(49_152, 3), (262_144, 1)])
def test_any_stack_on_a_large_vocabulary(size: int, each: int, instruction_set: str) -> None:
    assert_equals_the_reference(case(size, each), instruction_set)


FloatArray = npt.NDArray[np.floating]

HARD_ROWS: dict[str, Callable[[int, np.random.Generator], FloatArray]] = {
    "a cluster and one above it": lambda size, rng: with_one(1 + 1e-5 * rng.standard_normal(size), 9.0),
    "a cluster at 0 and one above it": lambda size, rng: with_one(1e-30 * rng.standard_normal(size), 5.0),
    "two clusters": lambda size, rng: rng.choice([0.0, 5.0], size) + 1e-5 * rng.standard_normal(size),
    "many clusters": lambda size, rng: rng.integers(0, 500, size) / 100 + 1e-6 * rng.standard_normal(size),
    "flat": lambda size, rng: 0.01 * rng.standard_normal(size),
    "less than the unit of any distance": lambda size, rng: 1e-20 * rng.standard_normal(size),
    "all equal but one": lambda size, rng: with_one(np.full(size, 0.5), 3.0),
    "all equal but one below": lambda size, rng: with_one(np.full(size, 0.5), -3.0),
    "ever nearer to 0": lambda size, rng: np.exp(rng.uniform(-80, 1.5, size)),
    "ever nearer to 0 from below": lambda size, rng: -np.exp(rng.uniform(-80, 1.5, size)),
    "ever nearer to the largest": lambda size, rng: 3 - np.exp(rng.uniform(-30, 1.5, size)),
    "many ties": lambda size, rng: np.round(2 * rng.standard_normal(size)),
    "ties of 0 and -0 in a cluster": lambda size, rng: rng.choice([0.0, -0.0, 1e-38, -1e-38, 4.0], size),
    "neighbours": lambda size, rng: 1 + rng.integers(0, 9, size) * 2.0**-23,
    "descending": lambda size, rng: np.linspace(5, 0, size),
}

RANKED = (
    entry(RuleKind.TAIL_FREE, 0.5),
    entry(RuleKind.TAIL_FREE, 0.95),
    entry(RuleKind.TOP_H, 0.5),
    entry(RuleKind.TOP_H, 0.9),
    entry(RuleKind.TOP_H, 0.5, 0, 1),
    entry(RuleKind.TOP_H, 0.999, 0, 1),
    entry(RuleKind.TOP_P, 0.7),
    entry(RuleKind.TYPICAL, 0.5),
    entry(RuleKind.TOP_K, 40),
)


def with_one(row: FloatArray, value: float) -> FloatArray:
    row[len(row) // 3] = value
    return row


@cache
def hard_case(size: int, each: int) -> Case:
    """Every hard row, each under entries that need an order or a crossing, half of them divided."""
    rng = np.random.default_rng(size)
    logits = np.stack([make(size, rng) for make in HARD_ROWS.values()]).astype(np.float32)
    divided = entry(RuleKind.TEMPERATURE, 0.9)
    planned = [
        Planned(stack=(divided, ranked) if (row + n) % 2 else (ranked,), key=mix(row), row=row)
        for row in range(len(logits))
        for n, ranked in enumerate(RANKED[i % len(RANKED)] for i in range(row * each, (row + 1) * each))
    ]
    plan = plan_of(planned, NUM_LOGPROBS)
    return logits, plan, sample(logits, plan), laws(logits, plan)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("size", "each"), [(129, 9), (5000, 9), (49_152, 3), (262_144, 1)])
def test_rows_that_are_hard_to_order(size: int, each: int, instruction_set: str) -> None:
    assert_equals_the_reference(hard_case(size, each), instruction_set)
