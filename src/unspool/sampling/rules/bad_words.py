"""Bad words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.errors import ParameterError
from unspool.sampling.rules.edit import Ban
from unspool.sampling.rules.rule import NO_AMOUNTS, Facts, Int32Array
from unspool.sampling.rules.scope import Scope, in_scope


@dataclass(frozen=True)
class BadWords(Ban):
    """Bans the token that would complete one of the given sequences of tokens.

    A sequence of one token is never said; one of several is not completed, where the last tokens in scope are
    its beginning. As Transformers' ``bad_words_ids``; vLLM's ``bad_words`` begin in the output alone.
    """

    sequences: tuple[tuple[int, ...], ...]
    scope: Scope = "all"
    name: ClassVar[str] = "bad_words"

    def __post_init__(self) -> None:
        if not all(self.sequences):
            raise ParameterError("bad_words holds a word without tokens: leave it out")

    @property
    def is_off(self) -> bool:
        """Where there is none."""
        return not self.sequences

    def memory(self, prompt: Sequence[int]) -> BadWordsMemory:
        """The last tokens."""
        return BadWordsMemory(self.sequences, self.scope, prompt)


class BadWordsMemory:
    """The last tokens in scope, and what each beginning is completed by."""

    __slots__ = ("_always", "_by_beginning", "_longest", "_recent", "_scope")

    amounts = NO_AMOUNTS
    values = None

    def __init__(self, sequences: Sequence[tuple[int, ...]], scope: Scope, prompt: Sequence[int]) -> None:
        self._scope = scope
        self._always = np.unique(np.array([s[0] for s in sequences if len(s) == 1], np.int32))
        self._by_beginning: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for *beginning, last in sequences:
            if beginning:
                same_length = self._by_beginning.setdefault(len(beginning), {})
                same_length.setdefault(tuple(beginning), []).append(last)
        self._longest = max(self._by_beginning, default=0)
        self._recent = tuple(in_scope(scope, prompt)[-self._longest :]) if self._longest else ()

    @property
    def tokens(self) -> Int32Array:
        """[m] the tokens that would complete a sequence."""
        banned: list[int] = []
        for length, endings in self._by_beginning.items():
            if length <= len(self._recent):
                banned += endings.get(self._recent[-length:], ())
        return np.unique(np.array([*self._always.tolist(), *banned], np.int32)) if banned else self._always

    def extend(self, token: int, facts: Facts) -> None:
        """Go on with a token."""
        if self._longest:
            self._recent = (*self._recent, token)[-self._longest :]

    def precede(self, token: int) -> None:
        """Take in a token of the prompt, if the scope goes as far."""
        if self._longest and self._scope != "output":
            self._recent = (*self._recent, token)[-self._longest :]

    def fork(self) -> BadWordsMemory:
        """The same, going its own way."""
        twin = BadWordsMemory.__new__(BadWordsMemory)
        twin._scope = self._scope
        twin._always, twin._by_beginning, twin._longest = self._always, self._by_beginning, self._longest
        twin._recent = self._recent
        return twin
