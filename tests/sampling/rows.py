"""Rows of logits of every character, stacks of every kind of entry over them, and the native sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from tests.sampling.plans import Asked, Entry
from unspool import _native
from unspool.sampling.plan import RowResults, RowStatus, RuleKind, SamplePlan
from unspool.sampling.sampler import Law

Float32Array = npt.NDArray[np.float32]

INSTRUCTION_SETS: list[str] = _native.instruction_sets()


@dataclass(frozen=True)
class Planned(Asked):
    """One row of a plan, by the entries of its chain."""

    stack: tuple[Entry, ...] = ()

    def entries(self) -> list[Entry]:
        return list(self.stack)


def entry(kind: RuleKind, *values: float, tokens: Sequence[int] = (), amounts: Sequence[float] = ()) -> Entry:
    a, b, c = (*map(float, values), 0.0, 0.0, 0.0)[:3]
    return kind, (a, b, c), list(tokens), list(amounts) or [0.0] * len(tokens)


def some_tokens(rng: np.random.Generator, size: int) -> list[int]:
    """Distinct ones in any order: few, or most of a small vocabulary."""
    tokens: list[int] = rng.permutation(size)[: rng.integers(0, min(size, 60) + 1)].tolist()
    return tokens


def any_entry(kind: RuleKind, rng: np.random.Generator, size: int) -> Entry:
    """One entry of a kind with random values, now and then at the end of their range."""

    def one_of(*choices: float) -> float:
        return float(rng.choice(choices))

    def share(*more: float) -> float:
        return one_of(0.0, 1e-12, 0.02, 0.3, float(rng.random()), 0.9, 0.999, 1 - 1e-9, 1.0, *more)

    makers: dict[RuleKind, Callable[[], Entry]] = {
        RuleKind.REPETITION_PENALTY: lambda: entry(
            kind, one_of(1e-4, 0.5, 1.1, 1.3, 5.0, 1e4), tokens=some_tokens(rng, size)
        ),
        RuleKind.TEMPERATURE: lambda: entry(kind, one_of(1e-9, 0.01, 0.3, 0.7, 1.0, 1.4, 30.0, 1e9)),
        RuleKind.TOP_K: lambda: entry(
            kind,
            one_of(1, 2, 5, 50, max(1, size // 20), max(1, size // 2), size, size + 5),
            int(rng.integers(3)),
        ),
        RuleKind.TOP_P: lambda: entry(kind, share(), int(rng.integers(3)), int(rng.integers(2))),
        RuleKind.MIN_P: lambda: entry(kind, share(1e-4)),
        RuleKind.ADD: lambda: any_addition(rng, size),
        RuleKind.BAN: lambda: entry(kind, tokens=some_tokens(rng, size)),
        RuleKind.ALLOW: lambda: entry(
            kind, tokens=sorted({int(rng.integers(size)), *some_tokens(rng, size)})
        ),
        RuleKind.DYNAMIC_TEMPERATURE: lambda: entry(
            kind, one_of(0.0, 0.2, 0.7), one_of(0.7, 1.5, 20.0), one_of(0.01, 0.5, 1.0, 2.0, 100.0)
        ),
        RuleKind.TOP_N_SIGMA: lambda: entry(kind, one_of(0.0, 0.5, 1.0, 2.5, 1e6, 4 * float(rng.random()))),
        RuleKind.TYPICAL: lambda: entry(kind, share(), int(rng.integers(2))),
        RuleKind.EPSILON: lambda: entry(kind, share(1e-6, 3e-4)),
        RuleKind.ETA: lambda: entry(kind, share(1e-6, 3e-4)),
        RuleKind.TOP_A: lambda: entry(kind, share(1e-3)),
        RuleKind.TAIL_FREE: lambda: entry(kind, share()),
        RuleKind.TOP_H: lambda: entry(kind, share(), one_of(0, 0, 1, 100), int(rng.integers(2))),
        RuleKind.P_LESS: lambda: entry(kind),
        RuleKind.XTC: lambda: entry(kind, one_of(0.5, 1.0), share(1e-5, 0.1)),
        RuleKind.MIROSTAT_1: lambda: entry(kind, one_of(-1e9, -3.0, 0.5, 2.0, 6.0, 11.0, 40.0, 1e9)),
        RuleKind.ADAPTIVE_P: lambda: entry(kind, share()),
        RuleKind.WITNESS: lambda: entry(kind),
    }
    return makers[kind]()


def any_addition(rng: np.random.Generator, size: int) -> Entry:
    tokens = some_tokens(rng, size)
    amounts = rng.choice([-np.inf, -3e38, -7.5, -0.5, 0.0, 0.25, 8.0, 40.0], len(tokens))
    return entry(RuleKind.ADD, tokens=tokens, amounts=amounts.tolist())


def any_stack(rng: np.random.Generator, size: int) -> tuple[Entry, ...]:
    """One to six entries of different kinds in any order."""
    kinds = rng.permutation(list(RuleKind))[: rng.integers(1, 7)]
    return tuple(any_entry(RuleKind(kind), rng, size) for kind in kinds)


def sample_natively(
    logits: Float32Array, plan: SamplePlan, instruction_set: str = "auto", threads: int = 1
) -> RowResults:
    pool = _native.Pool(threads)
    return RowResults(*_native.sample(pool, instruction_set, logits, *plan.arrays()))


def laws_natively(
    logits: Float32Array, plan: SamplePlan, instruction_set: str = "auto", threads: int = 1
) -> list[Law]:
    found = _native.laws(_native.Pool(threads), instruction_set, logits, *plan.arrays())
    return [(RowStatus(status), ids, left) for status, ids, left in found]


def assert_same(expected: RowResults, got: RowResults) -> None:
    for field in fields(RowResults):
        np.testing.assert_array_equal(getattr(got, field.name), getattr(expected, field.name), field.name)


def assert_same_laws(expected: list[Law], got: list[Law]) -> None:
    assert [law[0] for law in got] == [law[0] for law in expected]
    for n, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        np.testing.assert_array_equal(found[1], wanted[1], f"ids of law {n}")
        np.testing.assert_array_equal(found[2], wanted[2], f"logits of law {n}")


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
