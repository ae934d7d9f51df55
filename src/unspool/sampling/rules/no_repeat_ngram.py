"""n-gram blocking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.rules.edit import Ban
from unspool.sampling.rules.matches import SuffixMatches
from unspool.sampling.rules.rule import NO_AMOUNTS, Facts, Int32Array, require
from unspool.sampling.rules.scope import Scope


@dataclass(frozen=True)
class NoRepeatNgram(Ban):
    """Bans every token that would complete an n-gram that is already in scope.

    n is a whole number from 1; 1 lets no token come twice. Paulus, Xiong and Socher, "A deep reinforced
    model for abstractive summarization", 2017.
    """

    value: int
    scope: Scope = "output"
    name: ClassVar[str] = "no_repeat_ngram"

    def __post_init__(self) -> None:
        require("no_repeat_ngram_size", self.value, self.value >= 1, "a whole number from 0 (off)")

    @property
    def is_off(self) -> bool:
        """Never."""
        return False

    def memory(self, prompt: Sequence[int]) -> NgramMemory:
        """The n-grams in scope."""
        return NgramMemory(self.value, SuffixMatches(self.scope, prompt))


class NgramMemory:
    """What followed the last n - 1 tokens before."""

    __slots__ = ("matches", "n")

    amounts = NO_AMOUNTS
    values = None

    def __init__(self, n: int, matches: SuffixMatches) -> None:
        self.n, self.matches = n, matches

    @property
    def tokens(self) -> Int32Array:
        """[m] the tokens that would complete an n-gram again."""
        if self.n == 1:
            return np.unique(self.matches.tokens)
        return np.unique(self.matches.followers[self.matches.lengths >= self.n - 1])

    def extend(self, token: int, facts: Facts) -> None:
        """Go on with a token."""
        self.matches.push(token)

    def precede(self, token: int) -> None:
        """Take in a token of the prompt, if the scope goes as far."""
        if self.matches.scope != "output":
            self.matches.push(token)

    def fork(self) -> NgramMemory:
        """The same, going its own way."""
        return NgramMemory(self.n, self.matches.fork())
