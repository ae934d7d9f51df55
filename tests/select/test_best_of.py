"""Best of n: scores by name and by function, candidates without tokens, and what is refused."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from tests.select.making import candidate
from unspool.errors import ParameterError
from unspool.select import BestOf

DRAWN = [
    candidate("long", [-0.5, -0.5, -0.5, -0.5]),
    candidate("short", [-1.5]),
    candidate("uneven", [-0.1, -0.1, -2.0]),
]


@pytest.mark.parametrize(
    ("score", "scores", "order"),
    [
        ("sum_logprob", (-2.0, -1.5, -2.2), (1, 0, 2)),
        ("mean_logprob", (-0.5, -1.5, -2.2 / 3), (0, 2, 1)),
        ("min_logprob", (-0.5, -1.5, -2.0), (0, 1, 2)),
        (lambda candidate: -len(candidate.text), (-4.0, -5.0, -6.0), (0, 1, 2)),
        (lambda candidate: np.float32(len(candidate.text)), (4.0, 5.0, 6.0), (2, 1, 0)),
    ],
)
def test_candidates_come_by_descending_score_of_the_models_own_log_probabilities(
    score: Any, scores: tuple[float, ...], order: tuple[int, ...]
) -> None:
    choice = BestOf(3, score).begin().choose(DRAWN)
    assert choice.scores == pytest.approx(scores)
    assert choice.order == order
    assert (choice.best, choice.considered, choice.tally, choice.answer) == (order[0], 3, (), None)


def test_ties_go_to_the_earlier_sample_wherever_it_stands() -> None:
    for arranged in permutations(((-1.0,), (-1.0,), (-2.0,), (-2.0,))):
        order = BestOf(4).choose([candidate("", logprobs) for logprobs in arranged]).order
        assert order == tuple(sorted(range(4), key=lambda place: (-arranged[place][0], place)))


@pytest.mark.parametrize("score", ["sum_logprob", "mean_logprob", "min_logprob"])
def test_a_candidate_without_tokens_comes_last_though_its_sum_would_be_0(score: Any) -> None:
    choice = BestOf(3, score).choose([candidate("", []), candidate("a", [-9.0]), candidate("", [])])
    assert choice.order == (1, 0, 2)
    assert choice.scores[0] == -math.inf


def test_a_function_may_reject_with_minus_infinity_and_sees_what_has_no_tokens() -> None:
    choice = BestOf(2, lambda each: 0.0 if each.tokens == [] else -math.inf).choose(
        [candidate("a"), candidate("", [])]
    )
    assert choice.order == (1, 0)


def test_it_never_ends_early() -> None:
    assert BestOf(3).begin().settled([*DRAWN[:2], None]) is None
    assert BestOf(3).begin().settled(DRAWN) is None


@pytest.mark.parametrize("score", ["best", None, 3, ["sum_logprob"]])
def test_what_is_no_score_is_refused_with_the_names_of_those_there_are(score: Any) -> None:
    with pytest.raises(ParameterError, match="sum_logprob, mean_logprob, min_logprob"):
        BestOf(2, score)


@pytest.mark.parametrize("n", [0, -1, 4097, 1.5, True, "3", None])
def test_n_is_a_whole_number_from_1(n: Any) -> None:
    with pytest.raises(ParameterError, match="n must be"):
        BestOf(n)


def raising(each: Any) -> float:
    raise KeyError("nothing here")


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (raising, r"score=<function raising.*KeyError.*nothing here"),
        (lambda each: math.nan, "must return a number, not nan"),
        (lambda each: None, "must return a number, not None"),
        (lambda each: "7", "must return a number, not '7'"),
        (lambda each: 1j, "must return a number"),
        (lambda each: True, "must return a number, not True"),
    ],
)
def test_a_function_that_gives_no_number_is_named_with_the_text(score: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        BestOf(1, score).choose([candidate("the text")])
    assert "the text" in str(caught.value)
