"""Votes: majorities and ties, answers found in texts, and the earliest end that nothing can change."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.select.making import candidate, candidates
from unspool.errors import ParameterError
from unspool.results import Candidate
from unspool.select import Choice, Tally, Vote

MARK = r"#### (\S+)"


def choose(drawn: Sequence[Candidate], extract: Any = r"\w") -> Choice:
    return Vote(len(drawn), extract).begin().choose(drawn)


def test_the_majority_wins_and_everything_is_tallied() -> None:
    drawn = candidates(["a", "b", "b", "", "c", "b", "a"], [-1, -2, -4, -1, -1, -3, -2])
    choice = choose(drawn)
    assert choice.order == (1, 2, 5, 0, 6, 4, 3)  # the answers by votes, each one's samples in order
    assert choice.scores == (2.0, 3.0, 3.0, 0.0, 1.0, 3.0, 2.0)
    assert choice.tally == (Tally("b", 3, -3.0), Tally("a", 2, -1.5), Tally("c", 1, -1.0))
    assert (choice.answer, choice.best, choice.considered) == ("b", 1, 7)


def test_ties_go_to_the_higher_mean_log_probability_and_then_to_the_earlier_sample() -> None:
    assert choose(candidates(["a", "b", "b", "a"], [-1, -1, -2, -3])).answer == "b"
    assert choose(candidates(["a", "b", "b", "a"], [-1, -1, -2, -2])).answer == "a"
    assert choose(candidates(["b", "a", "b", "a"], [-1, -1, -2, -2])).answer == "b"


def test_a_mean_over_voters_counts_each_of_them_once_however_long() -> None:
    tally = choose([candidate("a", [-1.0]), candidate("a", [-4.0] * 9)]).tally
    assert tally == (Tally("a", 2, -2.5),)


def test_without_any_answer_the_best_mean_log_probability_is_chosen_and_the_tally_is_empty() -> None:
    drawn = [candidate("", []), *candidates(["!", "?", "!"], [-3, -2, -2])]
    choice = choose(drawn)
    assert choice.order == (2, 3, 1, 0)
    assert (choice.tally, choice.answer, choice.scores) == ((), None, (0, 0, 0, 0))


def test_a_voter_without_tokens_loses_a_tie() -> None:
    choice = choose([candidate("a", []), candidate("b", [-50.0])])
    assert choice.tally == (Tally("b", 1, -50.0), Tally("a", 1, -math.inf))


@pytest.mark.parametrize(
    ("extract", "text", "answer"),
    [
        (MARK, "#### 7 no, #### 8", "8"),  # the last match
        (r"\d+", "1, 2, 3", "3"),  # all of it without groups
        (r"is (\w+) or (\w+)", "is x or y", "x"),  # the first group
        (r"A: (\w+)|B: (\w+)", "A: x B: y", "y"),  # the first that took part
        (r"A(?: (\w+))?", "A x A", None),  # none took part in the last match
        (r"<(.*?)>", "<  yes\n>", None),  # a dot is no line feed
        (r"(?s)<(.*?)>", "<  yes\n>", "yes"),
        (r"<(.*?)>", "<  >", None),
        (MARK, "no answer", None),
        (MARK, "#### 1,200.00.", "1200"),
        (r"(?i)answer: ([a-d])", "Answer: b. ANSWER: C", "C"),
        (len, "four", 4),
        (lambda text: text or None, "", None),
        (lambda text: "1,200", "", "1,200"),  # as it is
    ],
)
def test_what_is_found_in_a_text(extract: Any, text: str, answer: Any) -> None:
    assert Vote(1, extract).answer(text) == answer


@pytest.mark.parametrize(
    "spelled",
    [
        "1200",
        "1,200",
        "1200.0",
        "1200.",
        "1200.00",
        "$1,200",
        "$1200.0",
        "01200",
        "+1200",
        " 1,200 ",
        "1200,",
    ],
)
def test_equal_numbers_are_one_answer_however_they_are_spelled(spelled: str) -> None:
    assert Vote(1, r"(?s).+").answer(spelled) == "1200"


@pytest.mark.parametrize(
    ("spelled", "answer"),
    [
        ("-5", "-5"),
        ("-$5", "-5"),
        ("$-5.50", "-5.5"),
        ("-0.0", "0"),
        (".5", "0.5"),
        ("0.50", "0.5"),
        ("1,00,000", "100000"),  # as in India
        ("1,20", "1,20"),  # a pair, or a decimal comma: who knows
        ("1,200,3", "1,200,3"),
        ("--5", "--5"),
        ("$", "$"),
        ("...", "..."),
        ("1.2.3", "1.2.3"),
        ("1e3", "1e3"),
        ("50%", "50%"),
        ("٣", "٣"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_numbers_keep_their_value_and_what_is_none_stays(spelled: str, answer: str) -> None:
    assert Vote(1, r"(?s).+").answer(spelled) == answer


def test_numbers_may_be_taken_as_they_are_written() -> None:
    assert Vote(1, r".+", numbers=False).answer("1.10") == "1.10"
    assert Vote(1, r".+").answer("1.10") == "1.1"


MEANS = (0.0, -1.0, -2.0, -math.inf)
SAID = [(answer, mean) for answer in ("a", "b", "") for mean in MEANS]


def drawn_of(said: Sequence[tuple[str, float]]) -> list[Candidate]:
    return candidates([answer for answer, _ in said], [mean for _, mean in said])


def endings(rest: int) -> Iterator[tuple[tuple[str, float], ...]]:
    """All that the rest may say, up to new answers' names; means at and within the ends of their range."""
    return product([*SAID, ("c", 0.0), ("c", -1.0), ("d", 0.0)], repeat=rest)


def winner(said: Sequence[tuple[str, float]]) -> str | None:
    """A plain count, over again."""
    votes = Counter(answer for answer, _ in said if answer)
    if not votes:
        return None

    def merit(answer: str) -> tuple[float, float, int]:
        means = [mean for mine, mean in said if mine == answer]
        return votes[answer], sum(means) / len(means), -[mine for mine, _ in said].index(answer)

    return max(votes, key=merit)


def decided(said: Sequence[tuple[str, float]], n: int) -> bool:
    return len({winner((*said, *rest)) for rest in endings(n - len(said))}) == 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_it_is_settled_at_the_smallest_m_that_no_rest_can_change(n: int) -> None:
    known: dict[tuple[tuple[str, float], ...], bool] = {}
    for m in range(n + 1):
        for said in product(SAID, repeat=m):
            known[said] = decided(said, n)
            first = next((k for k in range(m + 1) if known[said[:k]]), None)
            finished = [*drawn_of(said), *[None] * (n - m)]
            assert Vote(n, r"\w").begin().settled(finished) == first, said


@pytest.mark.parametrize(("n", "m"), [(4, 2), (4, 3), (5, 3), (5, 4)])
def test_it_is_settled_as_early_with_more_candidates(n: int, m: int) -> None:
    drawing = random.Random(n * 10 + m)
    pool = [tuple(drawing.choices(SAID, (3, 3, 3, 1, 2, 2, 2, 1, 1, 1, 1, 1), k=m)) for _ in range(60)]
    for said in {*pool, (("a", -1.0),) * m}:
        first = next((k for k in range(m + 1) if n - k <= 2 and decided(said[:k], n)), None)
        count = Vote(n, r"\w").begin()
        assert count.settled([*drawn_of(said), *[None] * (n - m)]) == first, said


def test_a_majority_of_all_settles_it_and_a_tie_that_may_come_does_not() -> None:
    def settled(texts: str, n: int, means: Sequence[float] | None = None) -> int | None:
        return Vote(n, r"\w").begin().settled([*candidates(list(texts), means), *[None] * (n - len(texts))])

    assert settled("aaaaaaaaa", 16) == 9
    assert settled("aaaaaaaa", 16) is None  # the other 8 may agree, each certain of every word
    assert settled("abaa", 5) == 4  # the last one cannot make a tie
    assert settled("aab", 4) is None  # it can, and "b" may come to -0.5
    assert settled("aab", 4, [-1, -1, -2]) == 3  # "b" comes to -1 at best, and "a" came first
    assert settled("baa", 4, [-2, -1, -1]) is None  # now "b" came first
    assert settled("aab", 4, [-1, -1, -2.5]) == 3
    assert settled("!!!", 4) is None  # the last one's answer would be the only one
    assert settled("!!!!", 4) == 4


@given(
    st.lists(st.sampled_from(SAID), min_size=1, max_size=7).flatmap(
        lambda said: st.tuples(st.just(said), st.permutations(range(len(said))))
    )
)
def test_what_finishes_first_changes_nothing(given_: tuple[list[tuple[str, float]], list[int]]) -> None:
    said, finishing = given_
    drawn = drawn_of(said)
    n = len(said)
    in_order = Vote(n, r"\w").begin().settled(drawn)
    assert in_order is not None
    count = Vote(n, r"\w").begin()
    finished: list[Candidate | None] = [None] * n
    for place in finishing:
        assert count.settled(finished) is None or None not in finished[:in_order]
        finished[place] = drawn[place]
    assert count.settled(finished) == in_order
    early = count.choose(drawn[:in_order])
    whole = Vote(n, r"\w").begin().choose(drawn)
    assert early == Vote(n, r"\w").begin().choose(drawn[:in_order])
    assert early.answer == whole.answer == (winner(said) or None)
    assert early.considered == in_order
    if whole.answer is not None:
        assert early.best == whole.best  # the very text that all of them would have given


def test_every_order_of_finishing_ends_at_the_same_m() -> None:
    drawn = candidates(list("abaca"))
    for finishing in permutations(range(5)):
        count, finished = Vote(5, r"\w").begin(), [None] * 5
        ends = []
        for place in finishing:
            finished[place] = drawn[place]  # type: ignore[call-overload]
            ends.append(count.settled(finished))
        assert set(ends) <= {None, 5}
        assert ends[-1] == 5


def test_each_text_is_looked_at_once_however_often_it_is_asked() -> None:
    looked: Counter[str] = Counter()

    def extract(text: str) -> str:
        looked[text] += 1
        return text[0]

    drawn = candidates([f"{'ab'[i % 2]}{i}" for i in range(40)])
    count, finished = Vote(40, extract).begin(), [None] * 40
    for place in random.Random(1).sample(range(40), 40):
        finished[place] = drawn[place]  # type: ignore[call-overload]
        count.settled(finished)
    count.choose(drawn)
    count.choose(drawn)
    assert looked == Counter(each.text for each in drawn)


def test_candidates_after_the_end_are_not_looked_at() -> None:
    def extract(text: str) -> str:
        assert text != "late"
        return text

    count = Vote(3, extract).begin()
    assert count.settled(candidates(["a", "a", "late"])) == 2
    assert count.choose(candidates(["a", "a"])).order == (0, 1)


def test_one_vote_serves_many_requests() -> None:
    vote = Vote(2, r"\w")
    assert vote.begin().choose(candidates(["a", "a"])).answer == "a"
    assert vote.begin().choose(candidates(["b", "b"])).answer == "b"


@pytest.mark.parametrize("pattern", ["(", "[a", "(?P<x", "*", r"\1"])
def test_a_bad_regular_expression_is_shown_with_what_is_wrong(pattern: str) -> None:
    with pytest.raises(ParameterError, match="is no regular expression") as caught:
        Vote(2, pattern)
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize("extract", [None, 3, ["x"], b"x", re.compile("x")])
def test_what_extracts_nothing_is_refused(extract: Any) -> None:
    with pytest.raises(ParameterError, match="extract must be"):
        Vote(2, extract)


def test_other_settings_are_checked() -> None:
    with pytest.raises(ParameterError, match="numbers must be True or False"):
        Vote(2, "x", numbers=1)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n must be"):
        Vote(0, "x")


def raising(text: str) -> str:
    raise ValueError("odd")


def test_a_function_that_raises_or_returns_what_cannot_be_hashed_is_named() -> None:
    with pytest.raises(ParameterError, match=r"extract=<function.*raising.*ValueError: odd, given 'a'"):
        choose(candidates(["a"]), raising)
    with pytest.raises(ParameterError, match=r"must return something hashable, not \['a'\]"):
        choose(candidates(["a"]), list)
