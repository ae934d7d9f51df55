"""Stochastic beams: samples of texts without replacement, by enumeration."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from tests.engine.making import generate, make_engine, run
from tests.sampling.rows import assert_drawn_from
from tests.strategy.enumerated import ASKED, PROMPT, ask, said, texts
from tests.strategy.models import native
from unspool.errors import ParameterError
from unspool.params import SamplingParams
from unspool.strategy import Figures, Offer, RowResult, StochasticBeam
from unspool.strategy.stochastic_beam import Perturbed, children_of


def test_no_text_comes_twice_and_figures_are_those_of_the_law() -> None:
    for seed in range(20):
        candidates = ask(strategy=StochasticBeam(6), seed=seed)
        assert len(set(said(candidates))) == 6
        scores = [candidate.score for candidate in candidates]
        assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
        for candidate in candidates:
            assert candidate.total == pytest.approx(texts()[tuple(candidate.token_ids)], abs=1e-4)


def test_pairs_are_drawn_as_sampling_without_replacement_draws_them() -> None:
    engine, count = make_engine(native(), num_blocks=2048), 4000
    flights = [
        engine.submit(
            engine.prepare(
                list(PROMPT), SamplingParams(strategy=StochasticBeam(2), seed=seed, temperature=1.0, **ASKED)
            )
        )
        for seed in range(count)
    ]
    run(engine, flights)
    drawn = [tuple(said(flight.generation().candidates)) for flight in flights]
    p = {text: math.exp(total) for text, total in texts().items()}
    pairs = list(permutations(p, 2))
    law = np.array([p[a] * p[b] / (1 - p[a]) for a, b in pairs])
    counts = Counter(drawn)
    assert_drawn_from(law, np.array([counts[pair] for pair in pairs]))
    inclusion = Counter(text for pair in drawn for text in pair)
    for text, mass in p.items():
        expected = mass + sum(p[a] * mass / (1 - p[a]) for a in p if a != text)
        spread = math.sqrt(count * expected * (1 - expected)) + 1
        assert abs(inclusion[text] - count * expected) < 4.5 * spread


def test_one_of_width_one_is_a_sample_and_a_beam_of_all_texts_has_them_all() -> None:
    everything = ask(strategy=StochasticBeam(len(texts())), seed=3)
    assert sorted(said(everything)) == sorted(texts())
    assert len(ask(strategy=StochasticBeam(1), seed=3)) == 1


def test_a_narrow_beam_begins_as_a_wide_one_does() -> None:
    """The n sequences with the largest perturbed log-probabilities do not depend on how many are kept."""
    for seed in range(10):
        wide = ask(strategy=StochasticBeam(8), seed=seed)
        assert said(ask(strategy=StochasticBeam(3), seed=seed)) == said(wide)[:3]
        assert said(ask(strategy=StochasticBeam(8), n=3, seed=seed)) == said(wide)[:3]


def test_more_results_than_it_is_wide_are_refused() -> None:
    with pytest.raises(ParameterError, match="n=3"):
        ask(strategy=StochasticBeam(2), n=3)
    for width in (0, 257, 2.0, True):
        with pytest.raises(ParameterError, match="width"):
            StochasticBeam(width)  # type: ignore[arg-type]


def test_a_seed_gives_the_same_texts_beside_others_and_alone() -> None:
    alone = ask(strategy=StochasticBeam(4), seed=11)
    engine = make_engine(native())
    own = engine.submit(
        engine.prepare(list(PROMPT), SamplingParams(strategy=StochasticBeam(4), seed=11, **ASKED))
    )
    others = [
        engine.submit(engine.prepare([3, i], SamplingParams(max_tokens=9, seed=i, temperature=1.0)))
        for i in range(5)
    ]
    run(engine, [own, *others])
    assert own.generation().candidates == alone
    assert generate(engine, list(PROMPT), strategy=StochasticBeam(4), seed=11, **ASKED).candidates == alone


def test_noise_that_a_thin_tail_puts_out_of_order_is_put_in_order() -> None:
    figures = Figures(-1.0, -1.0, 1.0, 0.0, 0, 2)
    offers = (Offer(1, -1.0, figures, 0.5), Offer(2, -1.0, figures, 0.5 + 1e-9))
    row = RowResult("branch", 1, figures, offers)
    parent = Perturbed(0.25, -3.0)
    best, second = sorted(children_of(row, parent), key=lambda child: -child.value.perturbed)
    assert best.offer == offers[1]
    assert best.value.perturbed == pytest.approx(parent.perturbed)
    assert second.value.perturbed <= best.value.perturbed
