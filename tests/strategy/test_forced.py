"""Beam search with phrases that results must hold: against enumeration, and what no search can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product, zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategy.texts import Text, Tokens, Toy, best, search
from unspool.errors import ParameterError, SearchError
from unspool.strategy import Beam, Strategy, Task
from unspool.strategy.phrases import Phrases, falls

PENALTIES = (-1.0, 0.0, 0.6, 1.0, 2.0)
Sets = list[list[Tokens]]


class Wide(Beam):
    """Is offered every token that a law has."""

    def begin(self, task: Task) -> Strategy:
        strategy = super().begin(task)
        strategy.want = strategy.want._replace(offers=task.vocab_size)
        return strategy


def holds(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    size = len(phrase)
    return any(tuple(tokens[at : at + size]) == tuple(phrase) for at in range(len(tokens) - size + 1))


def holding(toy: Toy, sets: Sets) -> list[Text]:
    """All texts that hold a phrase of each set."""
    return [
        text for text in toy.texts() if all(any(holds(text.tokens, p) for p in phrases) for phrases in sets)
    ]


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(
    "sets",
    [[[(3,)]], [[(1, 1)]], [[(1, 2, 1)], [(2, 1, 3)]], [[(2, 2), (3,)], [(1,)]], [[(1,)], [(2,)], [(3,)]]],
)
def test_a_wide_beam_finds_the_best_texts_that_hold_the_phrases(penalty: float, sets: Sets) -> None:
    for seed in range(4):
        toy = Toy(4, 4, frozenset({0}), seed)
        expected = best(holding(toy, sets), penalty)[:3]
        method = Beam(3**3 * 4, penalty, "never", force_words=sets)
        found = search(toy, method, 3)
        assert [text.tokens for text in found] == [text.tokens for text in expected]
        assert [t.total for t in found] == pytest.approx([t.total for t in expected], abs=1e-12)


@st.composite
def phrase_sets(draw: st.DrawFn) -> Sets:
    phrase = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    return draw(st.lists(st.lists(phrase, min_size=1, max_size=2), min_size=1, max_size=3))


def plain_forced(toy: Toy, sets: Sets, width: int, penalty: float) -> list[Text]:
    """Banks of texts, looked through from their first token on; it goes on up to ``max_tokens``."""

    def begun(tokens: Tokens, phrase: Tokens) -> int:
        return max(size for size in range(len(phrase)) if tokens[len(tokens) - size :] == phrase[:size])

    def bank(tokens: Tokens) -> int:
        made = 0
        for phrases in sets:
            held = any(holds(tokens, phrase) for phrase in phrases)
            made += max(map(len, phrases)) if held else max(begun(tokens, phrase) for phrase in phrases)
        return made

    def lacking(tokens: Tokens) -> int:
        open_sets = [phrases for phrases in sets if not any(holds(tokens, phrase) for phrase in phrases)]
        return max((min(len(p) - begun(tokens, p) for p in phrases) for phrases in open_sets), default=0)

    live, done = [Text((), 0.0)], []
    for length in range(1, toy.max_tokens + 1):
        candidates = [
            Text((*tokens, token), total + logprob)
            for tokens, total in live
            for token, logprob in sorted(toy.law(tokens).items(), key=lambda item: (-item[1], item[0]))
        ]
        candidates = sorted(
            (
                text
                for text in candidates
                if lacking(text.tokens) <= (toy.max_tokens - length) * (text.tokens[-1] not in toy.ends)
            ),
            key=lambda text: -text.total,
        )
        banks: dict[int, list[Text]] = {}
        for text in candidates:
            banks.setdefault(bank(text.tokens), []).append(text)
        turns = [banks[key] for key in sorted(banks, reverse=True)]
        ordered = [text for turn in zip_longest(*turns) for text in turn if text is not None]
        ordered = ordered[: max(2, 1 + len(toy.ends)) * width]
        done += [t for t in ordered[:width] if toy.ended(t.tokens) and not lacking(t.tokens)]
        live = [text for text in ordered if not toy.ended(text.tokens)][:width]
        done = best(done, penalty)[:width]
        if not live or len(done) == width:
            break
    return done


@given(
    st.integers(0, 10**6),
    phrase_sets(),
    st.integers(1, 8),
    st.integers(3, 7),
    st.sampled_from(PENALTIES),
    st.integers(0, 2),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
)
@settings(max_examples=120)
def test_a_narrow_beam_is_a_plain_one(
    seed: int,
    sets: Sets,
    width: int,
    length: int,
    penalty: float,
    few: int,
    stops: set[Tokens],
) -> None:
    """With all of the law offered: the plain one looks at every token, not at the best and at phrases."""
    toy = Toy(5, length, frozenset({0}), seed, few, likely=seed % 3, stop=lambda tokens: tokens[-2:] in stops)
    try:
        found = search(toy, Wide(width, penalty, True, force_words=sets), width)
    except SearchError:
        found = []
    except ParameterError:
        assert any(min(map(len, phrases)) > length for phrases in sets)
        return
    assert found == plain_forced(toy, sets, width, penalty)


@given(
    st.integers(0, 10**6),
    phrase_sets(),
    st.integers(1, 8),
    st.integers(3, 7),
    st.sampled_from(PENALTIES),
    st.sampled_from([True, False, "never"]),
    st.integers(0, 2),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=3),
)
@settings(max_examples=120)
def test_whatever_the_width_every_result_holds_them_or_the_request_says_so(
    seed: int,
    sets: Sets,
    width: int,
    length: int,
    penalty: float,
    stopping: Any,
    few: int,
    stops: set[Tokens],
) -> None:
    toy = Toy(5, length, frozenset({0}), seed, few, stop=lambda tokens: tokens[-2:] in stops)
    try:
        found = search(toy, Beam(width, penalty, stopping, force_words=sets), width)
    except SearchError:
        assert few or stops or length < sum(max(map(len, phrases)) for phrases in sets)
        return
    assert 1 <= len({text.tokens for text in found}) == len(found) <= width
    for text in found:
        assert toy.ended(text.tokens)
        assert all(any(holds(text.tokens, phrase) for phrase in phrases) for phrases in sets)


def test_a_phrase_that_the_model_finds_unlikely_is_found_by_few_beams() -> None:
    """Without banks the beams would all be texts that have not begun it."""
    for seed in range(10):
        toy = Toy(30, 12, frozenset({0}), seed)
        unlikely = sorted(toy.law(()), key=toy.law(()).__getitem__)
        phrase = [token for token in unlikely if token][:3]
        found = search(toy, Beam(4, 1.0, force_words=[phrase]))
        assert holds(found[0].tokens, phrase)


@given(phrase_sets(), st.lists(st.integers(0, 4), max_size=12))
@settings(max_examples=300)
def test_states_say_what_a_text_holds_and_how_far_it_is(sets: Sets, tokens: list[int]) -> None:
    phrases = Phrases(sets)
    state = phrases.start
    for at, token in enumerate(tokens):
        before, state = state, phrases.after(state, token)
        for ends, alternatives in zip(state, sets, strict=True):
            now = tokens[: at + 1]
            assert (ends is None) == any(holds(now, phrase) for phrase in alternatives)
            for phrase, begun in zip(alternatives, ends or (), strict=False):
                assert begun == max(i for i in range(len(phrase)) if tuple(now[len(now) - i :]) == phrase[:i])
        assert phrases.missing(state) >= phrases.missing(before) - 1
        if phrases.fulfilled(state) > phrases.fulfilled(before):
            assert token in phrases.next_tokens(before)
        assert phrases.complete(state) == (phrases.missing(state) == 0)


def test_borders_of_phrases() -> None:
    assert falls((1, 2, 1, 2, 3)) == (0, 0, 0, 1, 2, 0)
    for phrase in product((1, 2), repeat=6):
        for at, border in enumerate(falls(phrase)):
            borders = [i for i in range(1, at) if phrase[:i] == phrase[at - i : at]]
            assert border == max(borders, default=0)


def test_strings_become_any_of_their_spellings() -> None:
    method = Beam(4, force_words=["ab", [7, 8], ["c", [9]]])
    assert method.sets == (("ab",), ((7, 8),), ("c", (9,)))
    known = method.with_token_ids(lambda text: [(len(text),), (3, len(text))])
    assert known.sets == (((2,), (3, 2)), ((7, 8),), ((1,), (3, 1), (9,)))
    assert known == known.with_token_ids(lambda text: [])
    assert hash(known) != hash(method)

    def refuse(text: str) -> list[Tokens]:
        raise ParameterError("it is no text")

    with pytest.raises(ParameterError, match="force_words holds 'ab': it is no text"):
        method.with_token_ids(refuse)


@pytest.mark.parametrize(
    "given_words", ["ab", 3, [3], [[]], [""], [[[]]], [["a", ""]], [[1.5]], [[-1]], [None]]
)
def test_what_is_no_phrase_is_refused(given_words: Any) -> None:
    with pytest.raises(ParameterError, match="force_words"):
        Beam(4, force_words=given_words)


def test_phrases_that_no_text_can_hold_are_refused_at_once() -> None:
    toy = Toy(5, 3, frozenset({0}))
    cases: list[tuple[Any, str]] = [
        ([[1, 2, 3, 4]], "4 tokens; max_tokens=3"),
        ([[1, 0]], "token id 0, which ends a text"),
        ([[5]], "token id 5; the model's are 0 to 4"),
        (["ab"], "strings"),
        ([[1] * 2000], "1024"),
    ]
    for words, match in cases:
        with pytest.raises(ParameterError, match=match):
            Beam(4, force_words=words).begin(toy.task())
    with pytest.raises(ParameterError, match="mirostat"):
        Beam(4, force_words=[[1]]).begin(toy.task(learns=True))
    with pytest.raises(SearchError, match="max_tokens=3 and 4 beams"):
        search(toy, Beam(4, force_words=[[1, 2], [3, 4]]))
    assert math.isfinite(search(toy, Beam(4, force_words=[[1, 2], [2, 4]]))[0].total)
