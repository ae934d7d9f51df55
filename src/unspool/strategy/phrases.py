"""Phrases that a text must hold, and how far it is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from unspool import conversion
from unspool.errors import ParameterError, shown

Phrase = str | tuple[int, ...]
"""Text, or the token ids that spell it."""
Ids = tuple[int, ...]
State = tuple[Ids | None, ...]
"""Of each set: how many first tokens of each of its phrases a text ends with; ``None`` once it holds one."""

MOST_TOKENS = 1024
"""The most tokens of all phrases of one request."""


class Phrases:
    """Sets of phrases; a text is complete that holds one of each set, wherever, and overlapping or not.

    sets: of token ids, none of them empty.
    """

    def __init__(self, sets: Sequence[Sequence[Ids]]) -> None:
        self.sets = sets
        self.start: State = tuple((0,) * len(phrases) for phrases in sets)
        self._falls = [[falls(phrase) for phrase in phrases] for phrases in sets]
        self._longest = [max(map(len, phrases)) for phrases in sets]

    def after(self, state: State, token: int) -> State:
        """The state of a text that goes on with this token."""
        return tuple(
            self._after(at, ends, token) if ends is not None else None for at, ends in enumerate(state)
        )

    def _after(self, at: int, ends: Ids, token: int) -> Ids | None:
        made = []
        for phrase, fall, begun in zip(self.sets[at], self._falls[at], ends, strict=True):
            length = begun
            while length and phrase[length] != token:
                length = fall[length]
            length += phrase[length] == token
            if length == len(phrase):
                return None
            made.append(length)
        return tuple(made)

    def fulfilled(self, state: State) -> int:
        """How many tokens of phrases the text has: its bank."""
        return sum(
            most if ends is None else max(ends) for ends, most in zip(state, self._longest, strict=True)
        )

    def complete(self, state: State) -> bool:
        """Whether it holds a phrase of each set."""
        return all(ends is None for ends in state)

    def missing(self, state: State) -> int:
        """A number of tokens that it cannot be completed without."""
        return max(
            min(len(phrase) - begun for phrase, begun in zip(phrases, ends, strict=True))
            if ends is not None
            else 0
            for phrases, ends in zip(self.sets, state, strict=True)
        )

    def next_tokens(self, state: State) -> set[int]:
        """Tokens that go on with a phrase that it still needs, or begin one."""
        return {
            phrase[begun]
            for at, ends in enumerate(state)
            if ends is not None
            for phrase, begun in zip(self.sets[at], ends, strict=True)
        }


def falls(phrase: Ids) -> Ids:
    """[len + 1] of the first i tokens, the most that are both a proper beginning and an end of them.

    Knuth, Morris and Pratt, 1977.
    """
    made = [0, 0]
    for at in range(1, len(phrase)):
        length = made[at]
        while length and phrase[length] != phrase[at]:
            length = made[length]
        made.append(length + (phrase[length] == phrase[at]))
    return tuple(made)


def as_sets(name: str, value: Any) -> tuple[tuple[Phrase, ...], ...]:
    """Phrases, and lists of phrases of which one is enough, as tuples of phrases.

    Raises ``ParameterError`` for what is none.
    """
    given = conversion.listed(value) if value is not None else ()
    if given is None:
        raise refusal(name, value)
    return tuple(_as_set(name, item) for item in given)


def _as_set(name: str, item: Any) -> tuple[Phrase, ...]:
    """One phrase, or several."""
    if isinstance(item, str):
        return (_as_phrase(name, item),)
    inner = conversion.listed(item)
    if not inner:
        raise refusal(name, item)
    if conversion.index(inner[0]) is not None:
        return (_as_phrase(name, inner),)
    return tuple(dict.fromkeys(_as_phrase(name, phrase) for phrase in inner))


def _as_phrase(name: str, phrase: Any) -> Phrase:
    """Text, or token ids; neither is empty."""
    if isinstance(phrase, str) and phrase:
        return str(phrase)
    ids = None if isinstance(phrase, str) else conversion.listed(phrase)
    if not ids:
        raise refusal(name, phrase)
    return conversion.token_ids(name, ids)


def refusal(name: str, value: object) -> ParameterError:
    """The error for what is no phrase."""
    return conversion.refuse(
        name,
        value,
        "a list of phrases (strings or lists of token ids, none of them empty), or of lists of "
        "phrases of which one is enough",
    )


def with_token_ids(
    name: str, sets: Sequence[Sequence[Phrase]], encode: Callable[[str], Iterable[Ids]]
) -> tuple[tuple[Phrase, ...], ...]:
    """The same with each string as the sequences of token ids that may spell it, of which one is enough.

    Raises ``ParameterError``, naming the setting, for a string that is no text.
    """
    made = []
    for phrases in sets:
        ids: dict[Phrase, None] = {}
        for phrase in phrases:
            try:
                ids.update(dict.fromkeys(encode(phrase) if isinstance(phrase, str) else (phrase,)))
            except ParameterError as error:
                raise ParameterError(f"{name} holds {shown(phrase)}: {error}") from None
        made.append(tuple(ids))
    return tuple(made)
