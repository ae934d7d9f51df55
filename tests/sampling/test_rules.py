"""What each rule keeps, by its definition and in the cases that other engines got wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling.rows import log_of
from unspool.sampling.chain import compile_chain
from unspool.sampling.distribution import Distribution
from unspool.sampling.rules import MinP, RepetitionPenalty, Rule, RuleState, Temperature, TopK, TopP
from unspool.sampling.sampler import law_of


def after(
    logits: Sequence[float] | npt.NDArray[np.float32], *rules: Rule, seen: Sequence[int] = ()
) -> Distribution:
    return law_of(np.array(logits, np.float32), rules, RuleState(np.array(seen, np.int32)))


@pytest.mark.parametrize(
    ("probabilities", "p", "kept"),
    [
        ([0.40, 0.25, 0.15, 0.12, 0.05, 0.03], 0.9, 4),
        ([0.35, 0.25, 0.15, 0.12, 0.08, 0.05], 0.8, 4),
        ([0.35, 0.25, 0.15, 0.12, 0.08, 0.05], 0.5, 2),
    ],
)
def test_top_p_keeps_the_crossing_token(probabilities: list[float], p: float, kept: int) -> None:
    assert after(log_of(probabilities), TopP(p)).ids.tolist() == list(range(kept))


def test_top_p_on_an_exact_tie_takes_no_token_more() -> None:
    assert len(after(log_of([0.5, 0.5]), TopP(0.5)).ids) == 1
    assert len(after(log_of([0.5, 0.3, 0.2]), TopP(0.8)).ids) == 2
    assert len(after(log_of([0.4, 0.3, 0.2, 0.1]), TopP(0.7)).ids) == 2
    assert len(after(log_of([0.4, 0.3, 0.2, 0.1]), TopP(0.9)).ids) == 3
    for n in range(1, 60):
        for k in range(1, n):
            assert len(after(np.zeros(n, np.float32), TopP(k / n)).ids) == k


def test_top_p_takes_tied_tokens_by_ascending_id() -> None:
    law = after([0, 5, 5, 0, 5, 5], TopP(0.5))
    assert law.ids.tolist() == [1, 2, 4]  # two of the four weigh a hair less than half of all


def test_top_p_of_zero_keeps_the_most_probable_and_of_one_everything() -> None:
    assert after([1, 3, 3, 2], TopP(0)).ids.tolist() == [1]
    assert len(after([1, 3, 3, -80], TopP(1)).ids) == 4


def test_top_k_takes_tied_tokens_by_ascending_id() -> None:
    assert after([0, 5, 5, 0, 5, 5], TopK(3)).ids.tolist() == [1, 2, 4]
    assert after([0, 0.0, -0.0, 0], TopK(2)).ids.tolist() == [0, 1]


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert len(after([0, 1, 2], TopK(2**40)).ids) == 3


def test_top_k_one_is_greedy_under_ties() -> None:
    logits = np.array([1, 4, 4, 4, 0], np.float32)
    for chain in (
        compile_chain(top_k=1),
        compile_chain(temperature=0),
        compile_chain(temperature=0.7, top_k=1),
    ):
        assert after(logits, *chain.rules).ids.tolist() == [np.argmax(logits)]


def test_min_p_is_relative_to_the_most_probable() -> None:
    assert after(log_of([0.4, 0.3, 0.2, 0.06, 0.041, 0.0395]), MinP(0.1)).ids.tolist() == [0, 1, 2, 3, 4]
    flat = log_of([0.05] * 18 + [0.0051, 0.0049])
    assert after(flat, MinP(0.1)).ids.tolist() == list(range(19))


def test_min_p_keeps_a_token_on_the_exact_level() -> None:
    assert after(log_of([0.4, 0.3, 0.2, 0.06, 0.04]), MinP(0.1)).ids.tolist() == [0, 1, 2, 3, 4]
    assert after([2, 2, 1.999], MinP(1)).ids.tolist() == [0, 1]


def test_min_p_sees_the_law_that_temperature_left_and_the_order_says_so() -> None:
    logits = log_of([0.6, 0.3, 0.1])
    flattened = compile_chain(temperature=3, min_p=0.3).rules
    untouched = compile_chain(temperature=3, min_p=0.3, order=("min_p", "temperature")).rules
    assert len(after(logits, *flattened).ids) == 3
    assert len(after(logits, *untouched).ids) == 2


def test_repetition_penalty_makes_a_token_rarer_whatever_its_sign() -> None:
    logits = [2.0, -2.0, 0.0, 1.0]
    law = after(logits, RepetitionPenalty(1.25), seen=[0, 1, 2])
    np.testing.assert_allclose(law.logits, [1.6, -2.5, 0, 1])
    below_one = after(logits, RepetitionPenalty(0.5), seen=[0, 1])
    np.testing.assert_allclose(below_one.logits, [4, -1, 0, 1])


def test_repetition_penalty_counts_a_token_once_and_only_in_scope() -> None:
    law = after([1.0, 1.0, 1.0], RepetitionPenalty(2), seen=[2, 2, 2])
    np.testing.assert_array_equal(law.logits, np.array([1, 1, 0.5], np.float32))
    assert after([1.0, 1.0], RepetitionPenalty(2)).logits.tolist() == [1, 1]


def test_temperature_divides() -> None:
    np.testing.assert_array_equal(after([1, -3], Temperature(2)).logits, np.array([0.5, -1.5], np.float32))


def test_banned_tokens_stay_banned() -> None:
    law = after([1, -np.inf, 2], Temperature(0.5), RepetitionPenalty(2), TopK(3), TopP(0.999999), seen=[1])
    assert law.ids.tolist() == [0, 2]
