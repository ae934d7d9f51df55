"""Minimum Bayes risk: a plain double loop, each pair once, utilities as their authors have them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from tests.select.making import candidates
from unspool.errors import ParameterError
from unspool.select import MBR
from unspool.select.utility import Bleu, ChrF, RougeL, Utility, longest_common

TEXTS = [
    "The cat sat on the mat.",
    "A cat sat on a mat, it seems.",
    "The cat sat on the mat.",
    "Dogs bark; 3,000 of them &quot;do&quot;.",
    "",
    "x",
    "Größe und Maß: die Katze saß.\nNeue Zeile",
]

WORDS = st.lists(st.sampled_from("abcd"), max_size=12)
SENTENCES = st.text(alphabet="ab c.,é\n&-1", max_size=30)


def rouge(hypothesis: str, reference: str) -> float:
    return RougeL().both(RougeL().read(hypothesis), RougeL().read(reference))[0]


def overlap(hypothesis: str, reference: str) -> float:
    """Asymmetric, and not the same for every text with itself."""
    return sum((Counter(hypothesis) & Counter(reference)).values()) / (len(hypothesis) + 1)


LOOPS: dict[str, Callable[[str, str], float]] = {
    "chrf": lambda hypothesis, reference: sacrebleu.sentence_chrf(hypothesis, [reference]).score,
    "bleu": lambda hypothesis, reference: sacrebleu.sentence_bleu(hypothesis, [reference]).score,
    "rouge-l": rouge,
}


@pytest.mark.parametrize("utility", [*LOOPS, overlap])
def test_it_equals_a_plain_double_loop_over_all_samples(utility: Any) -> None:
    choice = MBR(len(TEXTS), utility).begin().choose(candidates(TEXTS))
    value = LOOPS.get(utility, overlap)
    expected = [math.fsum(value(mine, other) for other in TEXTS) / len(TEXTS) for mine in TEXTS]
    assert list(choice.scores) == expected
    assert choice.order == tuple(sorted(range(len(TEXTS)), key=lambda place: (-expected[place], place)))


def test_the_order_of_samples_changes_no_score() -> None:
    scores = {tuple(sorted(MBR(4, overlap).choose(candidates(t)).scores)) for t in permutations(TEXTS[1:5])}
    assert len(scores) == 1


def test_equal_texts_tie_and_the_earlier_sample_comes_first() -> None:
    assert MBR(4, "rouge-l").choose(candidates(["b a", "a b", "b a", "a b"])).order == (0, 1, 2, 3)
    assert MBR(3, "rouge-l").choose(candidates(["c", "a b", "a b"])).order == (1, 2, 0)


def test_a_function_sees_each_ordered_pair_of_different_texts_once() -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def utility(hypothesis: str, reference: str) -> float:
        seen[hypothesis, reference] += 1
        return 1.0

    MBR(7, utility).choose(candidates(list("abacaba")))
    assert seen == Counter(product("abc", repeat=2))


def test_one_candidate_is_chosen() -> None:
    assert MBR(1).choose(candidates(["alone"])).order == (0,)


def test_it_never_ends_early() -> None:
    assert MBR(2, "rouge-l").begin().settled(candidates(["a", "a"])) is None


def both(utility: Utility, first: str, second: str) -> tuple[float, float]:
    return utility.both(utility.read(first), utility.read(second))


@given(SENTENCES, SENTENCES)
def test_chrf_and_bleu_are_sacrebleus_sentence_scores_in_both_directions(first: str, second: str) -> None:
    for utility, value in ((ChrF(), LOOPS["chrf"]), (Bleu(), LOOPS["bleu"])):
        assert both(utility, first, second) == (value(first, second), value(second, first))


@pytest.mark.parametrize(
    ("first", "second", "score"),
    [
        # Lin 2004, section 3: with the reference "police killed the gunman"
        ("police kill the gunman", "police killed the gunman", 3 / 4),
        ("the gunman kill police", "police killed the gunman", 2 / 4),
        ("testing one two", "testing", 0.5),
        ("Police, KILLED the-gunman!", "police killed the gunman", 1.0),
        ("", "", 0.0),
        ("", "a", 0.0),
        ("...", "a", 0.0),
        ("Größe zählt", "größe", 2 / 3),
    ],
)
def test_rouge_l_of_known_texts(first: str, second: str, score: float) -> None:
    assert both(RougeL(), first, second) == pytest.approx((score, score))


def table(first: list[str], second: list[str]) -> int:
    """The longest common subsequence as textbooks have it."""
    row = [0] * (len(second) + 1)
    for word in first:
        before = list(row)
        for j, other in enumerate(second):
            row[j + 1] = before[j] + 1 if word == other else max(before[j + 1], row[j])
    return row[-1]


@given(WORDS, WORDS)
def test_the_longest_common_subsequence_is_that_of_the_table(first: list[str], second: list[str]) -> None:
    assert longest_common(first, second) == table(first, second) == longest_common(second, first)


def test_the_longest_common_subsequence_over_more_words_than_a_machine_word_has_bits() -> None:
    first, second = [str(i * i % 17) for i in range(300)], [str(i * 7 % 13) for i in range(311)]
    assert longest_common(first, second) == table(first, second)


@given(SENTENCES, SENTENCES)
def test_rouge_l_is_1_of_a_text_with_itself_and_within_0_and_1(first: str, second: str) -> None:
    score, reverse = both(RougeL(), first, second)
    assert 0 <= score == reverse <= 1
    assert both(RougeL(), first, first)[0] == (1.0 if RougeL().read(first) else 0.0)


@pytest.mark.parametrize("utility", ["chrF", "comet", None, 1, ["chrf"]])
def test_what_is_no_utility_is_refused_with_the_names_of_those_there_are(utility: Any) -> None:
    with pytest.raises(ParameterError, match="chrf, bleu, rouge-l"):
        MBR(2, utility)


@pytest.mark.parametrize("n", [0, 4097, 2.0, "x"])
def test_n_is_a_whole_number_from_1(n: Any) -> None:
    with pytest.raises(ParameterError, match="n must be"):
        MBR(n, "rouge-l")


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_without_sacrebleu_the_extra_is_named_before_anything_is_drawn(
    utility: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ParameterError, match=r"unspool\[select\]"):
        MBR(2, utility)
    assert MBR(2, "rouge-l").choose(candidates(["a", "b"])).order == (0, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1"])
def test_a_function_that_gives_no_finite_number_is_named(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"utility=<function.*must return"):
        MBR(2, lambda hypothesis, reference: value).choose(candidates(["a", "b"]))


def test_a_function_that_raises_is_named_with_both_texts() -> None:
    def utility(hypothesis: str, reference: str) -> float:
        raise ZeroDivisionError("no words")

    with pytest.raises(ParameterError, match=r"utility=.*ZeroDivisionError: no words, given 'a', 'a'"):
        MBR(1, utility).choose(candidates(["a"]))
