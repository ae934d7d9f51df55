"""The native sampler gives the reference's bits for every kind of entry and for any stack of them."""

from __future__ import annotations

from functools import cache

import numpy as np
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", RuleKind)
@pytest.mark.parametrize(("size", "each"), [(3, 60), (129, 60), (1000, 40), (4099, 12), (49_152, 3)])
def test_many_entries(size: int, each: int, kind: RuleKind) -> None:
    for instruction_set in INSTRUCTION_SETS:
        assert_equals_the_reference(case.__wrapped__(size, each, kind, 1), instruction_set)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("size", "each"),
    [(1, 60), (3, 200), (17, 200), (128, 200), (129, 200), (1000, 150), (4099, 50), (49_152, 8)],
)
def test_many_stacks(size: int, each: int, seed: int) -> None:
    for instruction_set in INSTRUCTION_SETS:
        assert_equals_the_reference(case.__wrapped__(size, each, None, 1 + seed), instruction_set)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RuleKind)
def test_every_entry_on_the_largest_vocabulary(kind: RuleKind) -> None:
    of = case.__wrapped__(262_144, 1, kind)
    for instruction_set in INSTRUCTION_SETS:
        assert_equals_the_reference(of, instruction_set)
