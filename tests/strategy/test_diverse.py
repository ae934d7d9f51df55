"""Diverse beam search: one group is beam search, and more do as a plain program of the paper does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategy.texts import Text, Toy, best, score, search
from unspool.errors import ParameterError
from unspool.strategy.beam import Beam
from unspool.strategy.diverse import DiverseBeam

PENALTIES = (-1.0, 0.0, 0.6, 1.0, 2.0)


@st.composite
def toys(draw: st.DrawFn) -> Toy:
    vocab_size = draw(st.integers(3, 6))
    ends = frozenset(draw(st.sets(st.integers(0, vocab_size - 1), max_size=2)))
    length, seed = draw(st.integers(1, 6)), draw(st.integers(0, 10**6))
    return Toy(vocab_size, length, ends, seed, draw(st.integers(0, 2)), draw(st.sampled_from([0.0, 0.5])))


def plain_diverse(toy: Toy, width: int, groups: int, diversity: float, penalty: float) -> list[Text]:
    """Each group with lists of its own, which stop when they are full of finished texts."""
    share = width // groups
    live: list[list[Text]] = [[Text((), 0.0)] for _ in range(groups)]
    done: list[list[Text]] = [[] for _ in range(groups)]
    while any(live):
        chosen: list[int] = []
        for group in range(groups):
            candidates = [
                Text((*tokens, token), total + logprob)
                for tokens, total in live[group]
                for token, logprob in sorted(toy.law(tokens).items(), key=lambda item: (-item[1], item[0]))
            ]
            candidates.sort(key=lambda text: diversity * chosen.count(text.tokens[-1]) - text.total)
            candidates = candidates[: max(2, 1 + len(toy.ends)) * share]
            ended = [text for text in candidates[:share] if toy.ended(text.tokens)]
            done[group] = best([*done[group], *ended], penalty)[:share]
            live[group] = [text for text in candidates if not toy.ended(text.tokens)][:share]
            chosen += [text.tokens[-1] for text in [*ended, *live[group]]]
            if len(done[group]) == share:
                live[group] = []
    return best(list({text for texts in done for text in texts}), penalty)


@given(toys(), st.integers(1, 5), st.sampled_from(PENALTIES), st.sampled_from([True, False, "never"]))
@settings(max_examples=80)
def test_one_group_is_beam_search(toy: Toy, width: int, penalty: float, stopping: Any) -> None:
    alone = search(toy, Beam(width, penalty, stopping), width)
    assert search(toy, DiverseBeam(width, 1, 3.0, penalty, stopping), width) == alone


@given(
    toys(),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 2.0, 50.0]),
    st.sampled_from(PENALTIES),
)
@settings(max_examples=150)
def test_groups_do_as_a_plain_program_does(
    toy: Toy, share: int, groups: int, diversity: float, penalty: float
) -> None:
    width = share * groups
    method = DiverseBeam(width, groups, diversity, penalty, early_stopping=True)
    found = search(toy, method, width)
    assert {text.tokens for text in found} == {
        text.tokens for text in plain_diverse(toy, width, groups, diversity, penalty)
    }
    assert len({text.tokens for text in found}) == len(found)
    scores = [score(text, penalty) for text in found]
    assert scores == sorted(scores, reverse=True)


def test_the_penalty_makes_groups_differ_and_is_in_no_score() -> None:
    """``search`` checks every total against the sum of the tokens' log-probabilities."""
    for seed in range(10):
        toy = Toy(6, 5, frozenset(), seed)
        alike = search(toy, DiverseBeam(4, 4, 0.0), 4)
        assert len(alike) == 1
        found = search(toy, DiverseBeam(4, 4, 100.0), 4)
        for place in range(5):
            assert len({text.tokens[place] for text in found}) == 4


def test_settings_are_checked() -> None:
    with pytest.raises(ParameterError, match="groups=3"):
        DiverseBeam(4, 3)
    with pytest.raises(ParameterError, match="diversity_penalty"):
        DiverseBeam(4, 2, -1.0)
    with pytest.raises(ParameterError, match="groups"):
        DiverseBeam(4, 0)
