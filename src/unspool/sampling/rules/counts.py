"""How often each token is in a branch's penalty scope."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

import numpy as np

from unspool.sampling.rules.rule import NO_AMOUNTS, Facts, Float32Array, Int32Array
from unspool.sampling.rules.scope import Scope, in_scope


class TokenCounts:
    """The distinct tokens in a scope and their counts, kept up to date in constant time a token."""

    __slots__ = ("_counts", "_places", "_tokens", "_window", "scope")

    values = None

    def __init__(self, scope: Scope, prompt: Sequence[int]) -> None:
        self.scope = scope
        self._tokens: Int32Array = np.empty(64, dtype=np.int32)
        self._counts: Float32Array = np.empty(64, dtype=np.float32)
        self._places: dict[int, int] = {}
        self._window: deque[int] = deque()
        for token in in_scope(scope, prompt):
            self._add(token)

    @property
    def tokens(self) -> Int32Array:
        """[m] the distinct tokens in scope, in no particular order: a view, valid until the next change."""
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> Float32Array:
        """[m] how often each is there: a view."""
        return self._counts[: len(self._places)]

    @property
    def amounts(self) -> Float32Array:
        """Nothing is added."""
        return NO_AMOUNTS

    def extend(self, token: int, facts: Facts) -> None:
        """Take in a generated token; the oldest leave a window."""
        self._add(token)

    def precede(self, token: int) -> None:
        """Take in a token of the prompt, if the scope goes as far."""
        if self.scope != "output":
            self._add(token)

    def fork(self) -> Self:
        """Counts of the same tokens that go their own way."""
        twin = type(self).__new__(type(self))
        twin.scope = self.scope
        twin._tokens, twin._counts = self._tokens.copy(), self._counts.copy()
        twin._places, twin._window = self._places.copy(), self._window.copy()
        return twin

    def _add(self, token: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = len(self._places)
            if place == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._tokens[place], self._counts[place] = token, 0
            self._places[token] = place
        self._counts[place] += 1
        if isinstance(self.scope, int):
            self._window.append(token)
            if len(self._window) > self.scope:
                self._forget(self._window.popleft())

    def _forget(self, token: int) -> None:
        """Count a token out; after its last one, the last of the arrays takes its place."""
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] > 0:
            return
        del self._places[token]
        last = len(self._places)
        if place != last:
            self._tokens[place], self._counts[place] = self._tokens[last], self._counts[last]
            self._places[int(self._tokens[place])] = place
