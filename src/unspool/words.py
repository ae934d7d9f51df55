"""Words that a caller spells, as the token ids that rules know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unspool.errors import ParameterError, shown
from unspool.params import DEFAULT_BREAKERS, SamplingParams
from unspool.strategy import Beam

if TYPE_CHECKING:
    from unspool.model.tokenizer import Tokenizer

MOST_CHARACTERS = 40
"""The most characters of a sequence breaker, as in llama.cpp, which cuts what is longer."""
MOST_BREAKERS = 64
"""The most sequence breakers of one request that are strings, and those that are kept for later ones."""
LONGEST_BREAKER = 20
"""The most tokens of a sequence breaker that are looked at, as in llama.cpp."""


class Words:
    """What one tokenizer makes of words; breakers, which take a look at every token, are kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: list[bytes] = []
        self._breakers: OrderedDict[str, tuple[tuple[int, ...], ...]] = OrderedDict()

    def with_token_ids(self, params: SamplingParams) -> SamplingParams:
        """The same with bad words, breakers and a beam's phrases as token ids. Raises ``ParameterError``."""
        changes: dict[str, Any] = {}
        if params.bad_words:
            changes["bad_words"] = as_ids("bad_words", params.bad_words, self.bad_word)
        if params.dry_multiplier:
            given = params.dry_sequence_breakers
            breakers = tuple(DEFAULT_BREAKERS if given is None else given)
            if sum(isinstance(breaker, str) for breaker in breakers) > MOST_BREAKERS:
                raise ParameterError(
                    f"dry_sequence_breakers holds {len(breakers)} breakers; at most {MOST_BREAKERS} may be "
                    "strings"
                )
            changes["dry_sequence_breakers"] = as_ids("dry_sequence_breakers", breakers, self.breaker)
        if isinstance(params.strategy, Beam) and params.strategy.force_words:
            changes["strategy"] = params.strategy.with_token_ids(self.bad_word)
        return replace(params, **changes) if changes else params

    def bad_word(self, word: str) -> tuple[tuple[int, ...], ...]:
        """How a word is encoded where a text begins with it, and after a space: as vLLM bans words."""
        return bad_word_ids(self._tokenizer, word)

    def breaker(self, text: str) -> tuple[tuple[int, ...], ...]:
        """Every way that tokens may spell a sequence breaker: see ``breaker_ids``."""
        if text not in self._breakers:
            if not self._pieces:
                self._pieces = [
                    self._tokenizer.token_bytes(token) for token in range(self._tokenizer.vocab_size)
                ]
            self._breakers[text] = breaker_ids(self._tokenizer, self._pieces, text)
            if len(self._breakers) > MOST_BREAKERS:
                self._breakers.popitem(last=False)
        self._breakers.move_to_end(text)
        return self._breakers[text]


def as_ids(
    name: str,
    words: Iterable[str | Iterable[int]],
    encode: Callable[[str], Iterable[tuple[int, ...]]],
) -> tuple[tuple[int, ...], ...]:
    """Each word's sequences of token ids, without repeats.

    Raises ``ParameterError``, naming the setting, for a word that is no text.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        try:
            sequences.update(dict.fromkeys(encode(word) if isinstance(word, str) else (tuple(word),)))
        except ParameterError as error:
            raise ParameterError(f"{name} holds {shown(word)}: {error}") from None
    return tuple(sequences)


def bad_word_ids(tokenizer: Tokenizer, word: str) -> tuple[tuple[int, ...], ...]:
    """How a word is encoded where a text begins with it, and after a space: as vLLM bans words."""
    bare = word.lstrip(" ")
    if not bare:
        raise ParameterError("there is nothing in it but spaces")
    return tuple(
        dict.fromkeys(tuple(tokenizer.encode(text, add_special=False)) for text in (bare, f" {bare}"))
    )


def breaker_ids(tokenizer: Tokenizer, pieces: Sequence[bytes], text: str) -> tuple[tuple[int, ...], ...]:
    """Every way that tokens may spell a sequence breaker.

    A token that holds the text breaks by itself; one that ends in a part of its beginning breaks with the
    tokens that the rest is encoded to. The definition is that of KoboldCpp and llama.cpp.
    """
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(f"it has more than {MOST_CHARACTERS} characters")
    tokenizer.encode(text, add_special=False)  # refuses what is no text
    whole = text.encode()
    sizes: dict[int, list[int]] = {}
    for size in range(1, len(whole)):
        sizes.setdefault(whole[size - 1], []).append(size)  # of a beginning, by its last byte
    sequences: list[tuple[int, ...]] = []
    tails: dict[str, tuple[int, ...]] = {}
    for token, piece in enumerate(pieces):
        if whole in piece:
            sequences.append((token,))
            continue
        for size in sizes.get(piece[-1], ()) if piece else ():
            if not piece.endswith(whole[:size]):
                continue
            with suppress(UnicodeDecodeError):  # within a character there is no text to encode
                rest = whole[size:].decode()
                if rest not in tails:
                    tails[rest] = tuple(tokenizer.encode(rest, add_special=False)[: LONGEST_BREAKER - 1])
                sequences.append((token, *tails[rest]))
    return tuple(dict.fromkeys(sequences))
