"""Each rule beside a plain transcription of its definition: loops over floats, nothing shared with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.sampling.plans import after
from unspool.sampling.distribution import Distribution
from unspool.sampling.plan import Ties
from unspool.sampling.rules import (
    AdaptiveP,
    DynamicTemperature,
    Epsilon,
    Eta,
    MinP,
    Mirostat,
    PLess,
    Rule,
    TailFree,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)

Row = list[float]
"""Logits by token id; -inf is banned."""
NOTHING = -math.inf
ROUNDING = 1e-7
"""Float32 logits say a probability no better than this: what comes so near a boundary has reached it."""


def law(z: Row) -> dict[int, float]:
    """p of each token that is not banned."""
    top = max(z)
    total = math.fsum(math.exp(x - top) for x in z if x > NOTHING)
    return {i: math.exp(x - top) / total for i, x in enumerate(z) if x > NOTHING}


def entropy(p: dict[int, float]) -> float:
    return -math.fsum(x * math.log(x) for x in p.values() if x > 0)


def descending(z: Row) -> list[int]:
    return sorted((i for i, x in enumerate(z) if x > NOTHING), key=lambda i: (-z[i], i))


def only(z: Row, chosen: list[int]) -> Row:
    return [x if i in set(chosen) else NOTHING for i, x in enumerate(z)]


def where(z: Row, holds: Callable[[float], bool]) -> Row:
    """Those candidates whose p holds, or the most probable one."""
    chosen = [i for i, x in law(z).items() if holds(x)]
    return only(z, chosen or descending(z)[:1])


def until(z: Row, order: list[int], mass: float) -> Row:
    """The first of an order whose p make up the mass."""
    p, chosen, total = law(z), [], 0.0
    for i in order:
        chosen.append(i)
        total += p[i]
        if total >= mass - ROUNDING and total > 0:
            break
    return only(z, chosen)


def temperature(z: Row, t: float) -> Row:
    return [x / t for x in z]


def dynamic_temperature(z: Row, low: float, high: float, exponent: float) -> Row:
    p = law(z)
    if len(p) == 1:
        return z
    t = low + (high - low) * (entropy(p) / math.log(len(p))) ** exponent
    return only(z, descending(z)[:1]) if t < 1e-9 else temperature(z, t)


def top_k(z: Row, k: int) -> Row:
    return only(z, descending(z)[:k])


def top_p(z: Row, p: float) -> Row:
    return until(z, descending(z), p)


def min_p(z: Row, m: float) -> Row:
    top = max(law(z).values())
    return where(z, lambda p: p >= m * top * (1 - 3 * ROUNDING))


def typical(z: Row, t: float) -> Row:
    p = law(z)
    h = entropy(p)
    return until(z, sorted(p, key=lambda i: (round(abs(-math.log(max(p[i], 1e-300)) - h), 5), i)), t)


def epsilon(z: Row, e: float) -> Row:
    return where(z, lambda p: p >= e * (1 - 3 * ROUNDING))


def eta(z: Row, e: float) -> Row:
    cut = min(e, math.sqrt(e) * math.exp(-entropy(law(z))))
    return where(z, lambda p: p >= cut * (1 - 3 * ROUNDING))


def top_a(z: Row, a: float) -> Row:
    cut = a * max(law(z).values()) ** 2
    return where(z, lambda p: p >= cut * (1 - 3 * ROUNDING))


def top_n_sigma(z: Row, n: float) -> Row:
    x = [v for v in z if v > NOTHING]
    mean = math.fsum(x) / len(x)
    sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x))
    return [v if v >= max(x) - n * sigma - ROUNDING else NOTHING for v in z]


def tail_free(z: Row, share: float) -> Row:
    order = descending(z)
    p = [law(z)[i] for i in order]
    slopes = [b - a for a, b in itertools.pairwise(p)]
    bends = [abs(b - a) for a, b in itertools.pairwise(slopes)]
    if len(p) < 3 or math.fsum(bends) < 1e-12:
        return z
    chosen, total = [order[0]], 0.0
    for i, bend in enumerate(bends):
        total += bend / math.fsum(bends)
        if total > share + ROUNDING:
            break
        chosen.append(order[i + 1])
    return only(z, chosen)


def top_h(z: Row, a: float) -> Row:
    order = descending(z)
    most = a * entropy(law(z))
    count = 1
    while count < len(order) and entropy(law(only(z, order[: count + 1]))) <= most * (1 + ROUNDING):
        count += 1
    return only(z, order[:count])


def top_h_summed(z: Row, a: float, cap: int) -> Row:
    p, total = law(top_k(z, cap)), 0.0
    chosen: list[int] = []
    for i in descending(top_k(z, cap)):
        total -= p[i] * math.log(p[i]) if p[i] > 0 else 0.0
        if chosen and total > a * entropy(p) * (1 + ROUNDING):
            break
        chosen.append(i)
    return only(z, chosen)


def p_less(z: Row) -> Row:
    cut = math.fsum(p * p for p in law(z).values())
    return where(z, lambda p: p >= cut * (1 - 3 * ROUNDING))


def xtc(z: Row, threshold: float) -> Row:
    p = law(z)
    top = [i for i in descending(z) if p[i] >= threshold * (1 - 3 * ROUNDING)]
    return [NOTHING if i in top[:-1] else x for i, x in enumerate(z)]


def mirostat_1(z: Row, mu: float) -> Row:
    order = descending(z)
    if len(order) == 1:
        return z
    ranked = order[:100]
    t = [math.log((i + 2) / (i + 1)) for i in range(len(ranked) - 1)]
    b = [z[i] - z[j] for i, j in itertools.pairwise(ranked)]
    s = math.fsum(x * y for x, y in zip(t, b, strict=True)) / math.fsum(x * x for x in t)
    if s == 0:  # (2**mu - 1) / (N - 1) of all N: the limit of the power 1 / s is nothing or everything
        return z if 2**mu > len(z) - 1 else only(z, order[:1])
    e = s - 1
    x = 2**mu / math.log(len(z)) if e == 0 else e * 2**mu / (1 - len(z) ** -e)
    k = math.exp(min(700.0, math.log(x) / s))
    return only(z, order[: max(1, int(min(k, 1e9)))])


def mirostat_2(z: Row, mu: float) -> Row:
    return where(z, lambda p: p > 0 and -math.log2(p) <= mu + ROUNDING)


def adaptive_p(z: Row, target: float) -> Row:
    changed = list(z)
    for i, p in law(z).items():
        distance = abs(p - target) / 0.3
        changed[i] = 5 - 10 * distance**2 / (1 + distance)
    return changed


CASES: list[tuple[Rule, Callable[[Row], Row]]] = [
    *((Temperature(t), lambda z, t=t: temperature(z, t)) for t in (0.1, 0.7, 3.0)),
    *(
        (DynamicTemperature(*v), lambda z, v=v: dynamic_temperature(z, *v))
        for v in ((0.0, 2.0, 1.0), (0.5, 1.5, 0.6), (0.2, 0.2, 3.0), (0.0, 1.0, 8.0))
    ),
    *((TopK(k), lambda z, k=k: top_k(z, k)) for k in (1, 2, 7, 40, 10_000)),
    *((TopP(p), lambda z, p=p: top_p(z, p)) for p in (0.0, 0.1, 0.5, 0.9, 0.999)),
    *((MinP(m), lambda z, m=m: min_p(z, m)) for m in (0.001, 0.05, 0.5, 1.0)),
    *((Typical(t), lambda z, t=t: typical(z, t)) for t in (0.0, 0.2, 0.7, 0.95)),
    *((Epsilon(e), lambda z, e=e: epsilon(z, e)) for e in (1e-4, 0.01, 0.3, 1.0)),
    *((Eta(e), lambda z, e=e: eta(z, e)) for e in (1e-4, 0.01, 0.3, 1.0)),
    *((TopA(a), lambda z, a=a: top_a(z, a)) for a in (0.01, 0.2, 1.0)),
    *((TopNSigma(n), lambda z, n=n: top_n_sigma(z, n)) for n in (0.0, 0.5, 1.0, 2.7)),
    *((TailFree(s), lambda z, s=s: tail_free(z, s)) for s in (0.0, 0.3, 0.9, 0.99)),
    *((TopH(a), lambda z, a=a: top_h(z, a)) for a in (0.0, 0.4, 0.9, 1.0)),
    *((TopH(a, 20, True), lambda z, a=a: top_h_summed(z, a, 20)) for a in (0.0, 0.4, 0.9)),
    (PLess(), p_less),
    *((Xtc(1.0, t), lambda z, t=t: xtc(z, t)) for t in (0.02, 0.1, 0.3, 0.5, 0.7)),
    *((Mirostat(1, tau), lambda z, tau=tau: mirostat_1(z, 2 * tau)) for tau in (0.3, 1.5, 3.0, 5.0)),
    *((Mirostat(2, tau), lambda z, tau=tau: mirostat_2(z, 2 * tau)) for tau in (0.3, 1.5, 3.0, 5.0)),
    *((AdaptiveP(t), lambda z, t=t: adaptive_p(z, t)) for t in (0.0, 0.3, 1.0)),
]

KINDS = ("random", "peaked", "flat", "tied", "banned", "ascending", "thin", "two", "one")


def row_of(kind: str, rng: np.random.Generator) -> Row:
    size = {"two": 2, "one": 1}.get(kind, 60)
    normal = rng.standard_normal(size)
    rows = {
        "peaked": 2 * normal + 12 * (np.arange(size) == 5),
        "flat": np.full(size, 1.25),
        "tied": np.round(normal),
        "banned": np.where(rng.random(size) < 0.8, -np.inf, 2 * normal),
        "ascending": np.linspace(-9, 3, size),
        "thin": 40 * normal,
    }
    return [float(x) for x in rows.get(kind, 2 * normal).astype(np.float32)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rule", "definition"), CASES, ids=[str(rule) for rule, _ in CASES])
def test_a_rule_is_its_definition(rule: Rule, definition: Callable[[Row], Row], kind: str) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(4):
        z = row_of(kind, rng)
        assert_same_law(after(z, rule), law(definition(z)))


@pytest.mark.parametrize("kind", ["random", "peaked", "banned", "ascending"])
def test_a_stack_is_its_definitions_one_after_another(kind: str) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    # Adaptive-p makes thin tails alike to a rounding: what follows would choose between ties.
    cases = [case for case in CASES if not isinstance(case[0], AdaptiveP)]
    for _ in range(150):
        stack = [cases[i] for i in rng.permutation(len(cases))[: rng.integers(2, 6)]]
        z = row_of(kind, rng)
        got = after(z, *(rule for rule, _ in stack))
        for _, definition in stack:
            z = definition(z)
        assert_same_law(got, law(z))


def assert_same_law(got: Distribution, expected: dict[int, float]) -> None:
    """The same candidates; what weighs less than fixed point can say, no sum of masses tells from nothing."""
    drawable = {i: p for i, p in zip(got.ids.tolist(), got.probabilities.tolist(), strict=True) if p > 0}
    assert {i for i, p in expected.items() if p > 1e-12} <= set(drawable) <= set(expected)
    for i, p in drawable.items():
        assert p == pytest.approx(expected[i], abs=1e-6)


@pytest.mark.parametrize("ties", Ties)
def test_ties_at_a_boundary_are_those_that_are_asked_for(ties: Ties) -> None:
    z = [0.0, 5, 5, 0, 5, 5]
    few = {Ties.LOWEST_ID: [1, 2], Ties.ALL: [1, 2, 4, 5], Ties.HIGHEST_ID: [4, 5]}[ties]
    assert after(z, TopK(2, ties)).ids.tolist() == few
    assert after(z, TopP(0.4, ties)).ids.tolist() == few
    assert after([1.0] * 4, TopP(0.5, ties)).ids.tolist() == {
        Ties.LOWEST_ID: [0, 1],
        Ties.ALL: [0, 1, 2, 3],
        Ties.HIGHEST_ID: [2, 3],
    }[ties]  # fmt: skip
    if ties != Ties.HIGHEST_ID:
        assert after(z, Typical(0.4, ties)).ids.tolist() == few


def test_a_strict_top_p_must_pass_p_and_another_reach_it() -> None:
    for n in range(2, 40):
        for k in range(1, n):
            assert len(after([0.0] * n, TopP(k / n)).ids) == k
            assert len(after([0.0] * n, TopP(k / n, strict=True)).ids) == k + 1
