"""Rows of logits of every character, and plans that sample them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from unspool import _native
from unspool.sampling.chain import Chain
from unspool.sampling.plan import RowResults, SamplePlan

Float32Array = npt.NDArray[np.float32]

INSTRUCTION_SETS: list[str] = _native.instruction_sets()

NO_RULES = Chain()


@dataclass(frozen=True)
class Planned:
    """One row of a plan."""

    chain: Chain = NO_RULES
    history: Sequence[int] = ()
    key: int = 0
    position: int = 0
    sample_index: int = 0
    row: int = 0


def plan_of(planned: Iterable[Planned], num_logprobs: int = 0) -> SamplePlan:
    rows = list(planned)
    lengths = [len(p.chain.rules) for p in rows]
    return SamplePlan(
        rows=np.array([p.row for p in rows], np.int32),
        chain_starts=np.cumsum([0, *lengths]).astype(np.int32),
        kinds=np.concatenate([np.empty(0, np.int32), *(p.chain.kinds for p in rows)]),
        values=np.concatenate([np.empty(0, np.float64), *(p.chain.values for p in rows)]),
        history_starts=np.cumsum([0, *(len(p.history) for p in rows)]).astype(np.int64),
        history=np.array([token for p in rows for token in p.history], np.int32),
        keys=np.array([p.key for p in rows], np.uint64),
        positions=np.array([p.position for p in rows], np.int32),
        sample_indices=np.array([p.sample_index for p in rows], np.int32),
        num_logprobs=num_logprobs,
    )


def draws_of(chain: Chain, n: int, history: Sequence[int] = ()) -> SamplePlan:
    """n draws from the same row, at the positions 0 to n - 1."""
    c, h = len(chain.rules), len(history)
    return SamplePlan(
        rows=np.zeros(n, np.int32),
        chain_starts=np.arange(0, n * c + 1, c, dtype=np.int32) if c else np.zeros(n + 1, np.int32),
        kinds=np.tile(chain.kinds, n),
        values=np.tile(chain.values, n),
        history_starts=np.arange(n + 1, dtype=np.int64) * h,
        history=np.tile(np.array(history, np.int32), n),
        keys=np.full(n, 20_240_229, np.uint64),
        positions=np.arange(n, dtype=np.int32),
        sample_indices=np.zeros(n, np.int32),
    )


def sample_natively(
    logits: Float32Array, plan: SamplePlan, instruction_set: str = "auto", threads: int = 1
) -> RowResults:
    pool = _native.Pool(threads)
    return RowResults(*_native.sample(pool, instruction_set, logits, *plan.arrays()))


def assert_same(expected: RowResults, got: RowResults) -> None:
    for field in fields(RowResults):
        np.testing.assert_array_equal(getattr(got, field.name), getattr(expected, field.name), field.name)


def row_of(kind: str, size: int, rng: np.random.Generator) -> Float32Array:
    """[size] float32 logits of one character."""
    normal = rng.standard_normal(size)
    match kind:
        case "random":
            row = 3 * normal
        case "peaked":
            row = 2 * normal
            row[rng.integers(size)] += 30
        case "flat":
            row = np.full(size, -7.25)
        case "tied":
            row = np.round(normal)
        case "tied at the top":
            row = np.minimum(3 * normal, 2.0)
        case "extreme":
            row = normal * 10.0 ** rng.integers(-40, 9, size)
        case "banned":
            row = np.where(rng.random(size) < 0.97, -np.inf, 3 * normal)
            row[rng.integers(size)] = 1.5
        case "ascending":
            row = np.linspace(-20, 20, size)
        case "zeros":
            row = np.where(rng.random(size) < 0.5, 0.0, -0.0)
        case _:
            raise ValueError(kind)
    return row.astype(np.float32)


ROW_KINDS = (
    "random",
    "peaked",
    "flat",
    "tied",
    "tied at the top",
    "extreme",
    "banned",
    "ascending",
    "zeros",
)


def log_of(probabilities: Sequence[float]) -> Float32Array:
    """Logits of a law."""
    return np.array([math.log(p) for p in probabilities], np.float32)


def assert_drawn_from(probabilities: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
    """Pearson's chi-square of counts against a law: within 4 standard deviations, nothing impossible.

    Cells expected fewer than 10 times are pooled. The statistic's cube root is nearly normal (Wilson
    and Hilferty, 1931).
    """
    expected = probabilities * counts.sum()
    assert counts[expected == 0].sum() == 0
    rare = expected < 10
    cells = [*zip(expected[~rare], counts[~rare], strict=True), (expected[rare].sum(), counts[rare].sum())]
    cells = [cell for cell in cells if cell[0] > 0]
    freedom = len(cells) - 1
    statistic = sum((count - mean) ** 2 / mean for mean, count in cells)
    spread = 2 / (9 * freedom)
    assert abs(math.cbrt(statistic / freedom) - (1 - spread)) < 4 * math.sqrt(spread)
