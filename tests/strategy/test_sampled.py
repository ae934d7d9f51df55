"""Beams that are drawn: inclusion by enumeration, and one beam is sampling."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling.rows import assert_drawn_from
from tests.strategy.texts import Driver, Tokens, Toy, search
from unspool.strategy.sampled import BeamSample


def test_one_beam_that_stops_at_its_first_text_is_sampling() -> None:
    toy = Toy(4, 3, frozenset({0, 2}), seed=5)
    texts = list(toy.texts())
    drawn = Counter(search(toy, BeamSample(1), seed=seed)[0].tokens for seed in range(4000))
    law = np.array([math.exp(text.total) for text in texts])
    assert_drawn_from(law / law.sum(), np.array([drawn[text.tokens] for text in texts]))


@pytest.mark.parametrize("ends", [{0}, set()])
def test_pairs_of_beams_are_drawn_without_replacement(ends: set[int]) -> None:
    """The first two tokens that live: in order, each by its share of what is left."""
    toy = Toy(5, 2, frozenset(ends), seed=1)
    law = {token: math.exp(logprob) for token, logprob in toy.law(()).items()}
    whole = sum(law.values())
    pairs = list(itertools.permutations(sorted(set(law) - ends), 2))
    expected: dict[tuple[int, ...], float] = defaultdict(float)
    for order in itertools.permutations(law):
        left, chance = whole, 1.0
        for token in order:
            chance *= law[token] / left
            left -= law[token]
        expected[tuple(token for token in order if token not in ends)[:2]] += chance
    counts = Counter[tuple[int, ...]]()
    for seed in range(3000):
        driver = Driver(toy, BeamSample(2).begin(toy.task()), seed)
        driver.strategy.grow([driver.row(driver.branches[0])], driver)
        counts[tuple(branch.tokens[0] for branch in pool_of(driver).live)] += 1
    assert_drawn_from(
        np.array([expected[pair] for pair in pairs]), np.array([counts[pair] for pair in pairs])
    )


@pytest.mark.parametrize("transformers", [False, True])
def test_beams_are_drawn_by_the_probabilities_of_their_whole_texts(transformers: bool) -> None:
    """Two steps: two texts of two tokens, by the sum over everything that may have been drawn on the way."""
    toy = Toy(3, 2, frozenset(), seed=4)
    expected: dict[frozenset[Tokens], float] = defaultdict(float)
    for chance, live in kept_of(toy, [()], 4, 2, transformers):
        for more, texts in kept_of(toy, live, 4, 2, transformers):
            expected[frozenset(texts)] += chance * more
    assert sum(expected.values()) == pytest.approx(1)
    counts = Counter(
        frozenset(text.tokens for text in search(toy, BeamSample(2), 2, seed, transformers=transformers))
        for seed in range(2000)
    )
    pairs = list(expected)
    assert_drawn_from(np.array([expected[p] for p in pairs]), np.array([counts[p] for p in pairs]))


def kept_of(
    toy: Toy, live: list[Tokens], draws: int, width: int, transformers: bool
) -> Iterator[tuple[float, list[Tokens]]]:
    """What may be kept of the beams' candidates after a number of draws, and how probable that is."""
    totals = {(*tokens, t): total_of(toy, (*tokens, t)) for tokens in live for t in toy.law(tokens)}
    for drawn in itertools.permutations(totals, min(draws, len(totals))):
        left, chance = sum(map(math.exp, totals.values())), 1.0
        for text in drawn:
            chance *= math.exp(totals[text]) / left
            left -= math.exp(totals[text])
        order = sorted(drawn, key=lambda text: -totals[text]) if transformers else drawn
        yield chance, list(order[:width])


def total_of(toy: Toy, tokens: Tokens) -> float:
    return sum(toy.law(tokens[:at])[token] for at, token in enumerate(tokens))


def pool_of(driver: Driver) -> Any:
    return driver.strategy.pool  # type: ignore[attr-defined]


@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans(), st.sampled_from([True, False, "never"]))
@settings(max_examples=80)
def test_it_ends_with_distinct_texts(seed: int, width: int, transformers: bool, stopping: Any) -> None:
    toy = Toy(5, 1 + seed % 6, frozenset({0}), seed)
    found = search(toy, BeamSample(width, 0.5, stopping), width, seed, transformers=transformers)
    assert 1 <= len({text.tokens for text in found}) == len(found) <= width
    assert all(toy.ended(text.tokens) for text in found)
    assert found == search(toy, BeamSample(width, 0.5, stopping), width, seed, transformers=transformers)


def test_the_transformers_order_sorts_what_was_drawn() -> None:
    """As with that library, one beam then prefers the likelier of the two tokens that it drew."""
    toy = Toy(5, 1, frozenset(), seed=1)
    law = {token: math.exp(logprob) for token, logprob in toy.law(()).items()}
    expected: dict[int, float] = defaultdict(float)
    for one, other in itertools.permutations(law, 2):
        expected[max(one, other, key=law.__getitem__)] += law[one] * law[other] / (1 - law[one])
    drawn = Counter(
        search(toy, BeamSample(1), seed=seed, transformers=True)[0].tokens[0] for seed in range(3000)
    )
    assert_drawn_from(np.array([expected[t] for t in law]), np.array([drawn[t] for t in law]))
