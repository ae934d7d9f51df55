"""DRY: don't repeat yourself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.rules.edit import Add
from unspool.sampling.rules.matches import SuffixMatches
from unspool.sampling.rules.rule import Facts, Float32Array, Int32Array, require
from unspool.sampling.rules.scope import Scope, in_scope

LOG_LARGEST = 88.7228391
"""log of the largest float32: no penalty's power goes beyond it."""


@dataclass(frozen=True)
class Dry(Add):
    """z becomes z - multiplier * base ** (length - allowed_length) for a token that goes on with a repeat.

    ``length`` is that of the longest suffix of the tokens in scope that came before, followed by the token;
    shorter than ``allowed_length`` it is free. No match reaches back over a sequence breaker that is whole in
    scope, and a breaker of one token is never penalized. multiplier is 0 (off) to 1e4, base 1 to 1e4,
    allowed_length a whole number from 1. p-e-w's "DRY: a modern repetition penalty", 2024, as in llama.cpp.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    breakers: tuple[tuple[int, ...], ...] = ()
    """[breakers] the token ids of each."""
    scope: Scope = "all"
    name: ClassVar[str] = "dry"

    def __post_init__(self) -> None:
        require("dry_multiplier", self.multiplier, 0 <= self.multiplier <= 1e4, "from 0 (off) to 10000")
        require("dry_base", self.base, 1 <= self.base <= 1e4, "from 1 to 10000")
        require("dry_allowed_length", self.allowed_length, self.allowed_length >= 1, "a whole number from 1")

    @property
    def is_off(self) -> bool:
        """At multiplier 0."""
        return self.multiplier == 0

    def memory(self, prompt: Sequence[int]) -> DryMemory:
        """The repeats in scope."""
        return DryMemory(self, prompt)

    def penalty(self, length: int) -> float:
        """What a token costs that goes on with a repeat of ``length`` tokens."""
        exponent = length - self.allowed_length
        if self.base > 1.000001:
            exponent = min(exponent, int(LOG_LARGEST / math.log(self.base)))
        return min(self.multiplier * self.base**exponent, float(np.finfo(np.float32).max))


class DryMemory:
    """Matches of a branch's end, and where breakers were."""

    __slots__ = ("_breakers", "_breaks", "_found", "_longest", "_matches", "_recent", "_rule", "_singles")

    values = None

    def __init__(self, rule: Dry, prompt: Sequence[int]) -> None:
        self._rule = rule
        self._matches = SuffixMatches(rule.scope, prompt)
        self._breakers: dict[int, list[tuple[int, ...]]] = {}
        for breaker in rule.breakers:
            self._breakers.setdefault(breaker[-1], []).append(breaker)
        self._singles = np.array([b[0] for b in rule.breakers if len(b) == 1], np.int32)
        self._longest = max(map(len, rule.breakers), default=1)
        self._recent: tuple[int, ...] = ()
        self._breaks: list[tuple[int, int]] = []
        """(start, end) of those breakers that may yet be the last one in scope: starts fall, ends rise."""
        self._found: tuple[Int32Array, Int32Array] | None = None
        for end, token in enumerate(in_scope(rule.scope, prompt), start=1):
            self._look_for_breakers(token, end)

    def _look_for_breakers(self, token: int, end: int) -> None:
        """Note those that end with a token, which is the ``end``-th."""
        self._recent = (*self._recent, token)[-self._longest :]
        for breaker in self._breakers.get(token, ()):
            start = end - len(breaker)
            if self._recent[-len(breaker) :] == breaker:
                while self._breaks and self._breaks[-1][0] <= start:
                    self._breaks.pop()
                self._breaks.append((start, end))

    def extend(self, token: int, facts: Facts) -> None:
        """Go on with a token."""
        self._push(token)

    def precede(self, token: int) -> None:
        """Take in a token of the prompt, if the scope goes as far."""
        if self._rule.scope != "output":
            self._push(token)

    def _push(self, token: int) -> None:
        self._found = None
        self._matches.push(token)
        self._look_for_breakers(token, self._matches.count)
        while self._breaks and self._breaks[-1][0] < self._matches.first:
            self._breaks.pop()

    def fork(self) -> DryMemory:
        """The same, going its own way."""
        twin = DryMemory.__new__(DryMemory)
        twin._rule, twin._breakers, twin._singles = self._rule, self._breakers, self._singles
        twin._longest, twin._recent = self._longest, self._recent
        twin._matches, twin._breaks = self._matches.fork(), self._breaks.copy()
        twin._found = self._found
        return twin

    def _repeats(self) -> tuple[Int32Array, Int32Array]:
        """[m] the tokens that would go on with a repeat, and the length of the longest one of each."""
        if self._found is None:
            since = self._matches.count - (self._breaks[-1][1] if self._breaks else 0)
            lengths = np.minimum(self._matches.lengths, since)
            long = lengths >= self._rule.allowed_length
            tokens, which = np.unique(self._matches.followers[long], return_inverse=True)
            longest = np.zeros(len(tokens), np.int32)
            np.maximum.at(longest, which, lengths[long])
            penalized = ~np.isin(tokens, self._singles)
            self._found = tokens[penalized], longest[penalized]
        return self._found

    @property
    def tokens(self) -> Int32Array:
        """[m] the tokens that would go on with a repeat."""
        return self._repeats()[0]

    @property
    def amounts(self) -> Float32Array:
        """[m] minus what each costs."""
        return np.array([-self._rule.penalty(length) for length in self._repeats()[1].tolist()], np.float32)
