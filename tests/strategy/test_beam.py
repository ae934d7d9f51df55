"""Beam search against enumeration and against a plain program, and what users of others found wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategy.texts import Driver, Text, Tokens, Toy, best, plain_beam, search
from unspool.errors import ParameterError
from unspool.strategy.beam import Beam
from unspool.strategy.hypotheses import Hypotheses, Hypothesis, Scoring

PENALTIES = (-1, 0, 0.6, 1, 2)
STOPPING: Any = st.sampled_from([True, False, "never"])


@pytest.mark.parametrize(
    ("stopping", "penalty"),
    [*(("never", penalty) for penalty in PENALTIES), (False, -1), (False, 0)],
)
@pytest.mark.parametrize("ends", [{0}, {0, 2}, set()])
def test_a_beam_as_wide_as_all_beginnings_is_exhaustive_search(
    penalty: float, stopping: Any, ends: set[int]
) -> None:
    """Where the rule to stop is certain: with ``False`` and a penalty above 0 it is a guess that no longer
    text scores better, and ``True`` stops at any ``width`` texts."""
    for seed in range(6):
        toy = Toy(4, 4, frozenset(ends), seed)
        width = (4 - len(ends)) ** 3 * 4  # candidates of the last step
        expected = best(list(toy.texts()), penalty)
        for n in (1, 2, 5):
            found = search(toy, Beam(width, penalty, stopping), n)
            assert [text.tokens for text in found] == [text.tokens for text in expected[:n]]
            assert [t.total for t in found] == pytest.approx([t.total for t in expected[:n]], abs=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_a_beam_as_wide_as_all_texts_is_exhaustive_search_whenever_it_stops(
    penalty: float, stopping: Any
) -> None:
    toy = Toy(3, 4, seed=9)
    texts = best(list(toy.texts()), penalty)
    assert search(toy, Beam(len(texts), penalty, stopping), len(texts)) == texts


@st.composite
def toys(draw: st.DrawFn) -> Toy:
    vocab_size = draw(st.integers(3, 6))
    ends = frozenset(draw(st.sets(st.integers(0, vocab_size - 1), max_size=2)))
    stops = draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
    return Toy(
        vocab_size,
        draw(st.integers(1, 6)),
        ends,
        draw(st.integers(0, 10**6)),
        draw(st.integers(0, vocab_size - 1)),
        draw(st.sampled_from([0.0, 0.0, 0.5])),
        draw(st.sampled_from([0.0, 3.0])),
        stop=(lambda tokens: tokens[-2:] in stops) if stops else None,
    )


@given(
    toys(),
    st.integers(1, 9),
    st.sampled_from([-100, *PENALTIES, 100]),
    STOPPING,
    st.booleans(),
    st.data(),
)
@settings(max_examples=300)
def test_a_narrow_beam_is_a_plain_one(
    toy: Toy, width: int, penalty: float, stopping: Any, transformers: bool, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, width))
    toy.above = data.draw(st.sampled_from([0.0, 1.0, 3.0])) if transformers else 0.0
    found = search(toy, Beam(width, penalty, stopping), n, transformers=transformers)
    expected = plain_beam(toy, width, penalty, stopping, transformers)[:n]
    assert found == expected
    assert len({text.tokens for text in found}) == len(found) <= n
    assert all(1 <= len(text.tokens) <= toy.max_tokens for text in found)


def test_width_1_that_stops_at_its_first_text_is_greedy() -> None:
    for seed in range(20):
        toy = Toy(5, 6, seed=seed)
        tokens: Tokens = ()
        while not toy.ended(tokens):
            tokens += (max(toy.law(tokens), key=toy.law(tokens).__getitem__),)
        assert [text.tokens for text in search(toy, Beam(1, early_stopping=True))] == [tokens]


def test_length_is_of_generated_tokens_alone() -> None:
    """Whatever the prompt: a strategy sees no token of it. The token that ends a text counts."""
    toy = Toy(3, 3, seed=1)
    driver = Driver(toy, Beam(30, 2.0).begin(toy.task(30)))
    for branch in driver.run():
        assert branch.score == branch.total / len(branch.tokens) ** 2


@pytest.mark.parametrize("penalty", [-100, -1, -0.1, 0, 0.1, 1, 100])
def test_the_bound_is_right_for_either_sign_of_the_penalty(penalty: float) -> None:
    """No way to go on beats it, and one comes to it: for a total above 0 too, as a preset may leave it."""
    for most in (20, 5000):
        scoring = Scoring(penalty, most)
        for total in (-30.0, -1e-3, 0.0, 2.0):
            bound = scoring.bound(total, 7)
            reached = [scoring.key(total, length) for length in range(8, most + 1)]
            assert max(reached) == bound
            assert all(scoring.key(total - 0.5, length) <= bound for length in range(8, most + 1))


@pytest.mark.parametrize("penalty", [-100.0, -1.0, 0.0, 1.0, 100.0])
@pytest.mark.parametrize("most", [10, 100_000])
def test_keys_order_as_exact_scores_do_whatever_the_penalty(penalty: float, most: int) -> None:
    scoring = Scoring(penalty, most)
    texts = [(-total, length) for total in (0.5, 3.0, 700.0) for length in (1, 2, most // 3, most)]
    texts += [(0.0, 3), (1.5, 2), (1.5, most)]

    for one in texts:
        for other in texts:
            (a, i), (b, j) = one, other
            # a / i**p < b / j**p  <=>  a * j**p < b * i**p, in whole numbers
            power = int(abs(penalty))
            left, right = (j, i) if penalty >= 0 else (i, j)
            smaller = int(2 * a) * left**power < int(2 * b) * right**power
            assert (scoring.key(*one) < scoring.key(*other)) == smaller
            assert not smaller or scoring.score(*one) <= scoring.score(*other)


def test_hypotheses_keep_the_best_and_the_earlier_of_those_that_tie() -> None:
    kept = Hypotheses(2)

    def add(name: str, key: float) -> str | None:
        lost = kept.add(Hypothesis(name, key, 1, (0, key), -1))
        return None if lost is None else str(lost.branch)

    assert add("a", -3.0) is None
    assert add("b", -2.0) is None
    assert not kept.takes((0, -3.0))
    assert add("c", -3.0) == "c"
    assert add("d", -2.0) == "a"
    assert [each.branch for each in kept.kept] == ["b", "d"]


def test_never_stops_no_later_than_it_must() -> None:
    """A bound for the penalty's sign: where short texts win, a search ends long before ``max_tokens``."""
    toy = Toy(4, 200, seed=3)
    driver = Driver(toy, Beam(4, -1.0, "never").begin(toy.task()))
    driver.run()
    assert driver.steps < 100


def test_fewer_results_need_no_longer_search() -> None:
    toy = Toy(5, 60, seed=2)
    all_steps = []
    for n in (1, 4):
        driver = Driver(toy, Beam(4, 0.0, "never").begin(toy.task(n)))
        found = driver.run()
        all_steps.append((driver.steps, found[0].tokens))
    assert all_steps[0][0] <= all_steps[1][0]
    assert all_steps[0][1] == all_steps[1][1]


def test_a_stop_string_frees_its_place_for_the_next_best() -> None:
    laws = {(): {1: -0.1, 2: -0.5, 3: -2.0}, (2,): {0: -0.1, 1: -3.0}, (3,): {0: -0.1, 1: -3.0}}
    toy = Toy(4, 2, known={k: dict(v) for k, v in laws.items()}, stop=lambda tokens: tokens == (1,))
    found = search(toy, Beam(2, 0.0, early_stopping="never"), 2)
    assert found == [Text((1,), -0.1), Text((2, 0), -0.6)]
    driver = Driver(toy, Beam(2, 0.0, "never").begin(toy.task(2, traced=True)))
    driver.run()
    tree = driver.strategy.tree
    assert tree is not None
    assert [(n.token, n.fate) for n in tree.nodes[:3]] == [(1, "finished"), (2, "kept"), (3, "kept")]


def test_settings_are_checked_where_they_are_said() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"width": 0}, "width"),
        ({"width": 5000}, "width"),
        ({"width": True}, "width"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"length_penalty": 1e9}, "length_penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"n": 5}, "n=5"),
    ]
    for settings_given, word in cases:
        options: Any = {"width": 4, **settings_given}
        with pytest.raises(ParameterError, match=word):
            Beam(**options)
    toy = Toy(4, 4)
    with pytest.raises(ParameterError, match="n=3 results of 2 beams"):
        Beam(2).begin(toy.task(3))
    with pytest.raises(ParameterError, match="one place"):
        Beam(4, n=2).begin(toy.task(3))
    assert Beam(4, n=3).begin(toy.task(3)).width == 1
    assert len(search(toy, Beam(4, n=3))) == 3
