"""The tokens that a branch's penalties see."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt


class PenaltyHistory:
    """The distinct tokens in a branch's penalty scope, kept up to date in constant time a token.

    scope: ``"output"`` sees generated tokens, ``"all"`` the prompt's too, a number the last n of both.
    """

    __slots__ = ("_buffer", "_counts", "_places", "_window", "scope")

    def __init__(self, scope: Literal["output", "all"] | int, prompt: Sequence[int]) -> None:
        self.scope = scope
        self._buffer: npt.NDArray[np.int32] = np.empty(64, dtype=np.int32)
        self._places: dict[int, int] = {}
        self._counts: Counter[int] = Counter()
        self._window: deque[int] = deque()
        if scope != "output":
            self.extend(prompt if scope == "all" else prompt[-scope:])

    def fork(self) -> PenaltyHistory:
        """A history of the same tokens that goes its own way."""
        twin = PenaltyHistory("output", ())
        twin.scope = self.scope
        twin._buffer, twin._places = self._buffer.copy(), self._places.copy()
        twin._counts, twin._window = self._counts.copy(), self._window.copy()
        return twin

    @property
    def array(self) -> npt.NDArray[np.int32]:
        """[m] the distinct tokens in scope, in no particular order: a view, valid until the next change."""
        return self._buffer[: len(self._places)]

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in generated tokens; the oldest leave a window."""
        for token in tokens:
            if token not in self._places:
                self._add(token)
            if isinstance(self.scope, int):
                self._counts[token] += 1
                self._window.append(token)
                if len(self._window) > self.scope:
                    self._forget(self._window.popleft())

    def _add(self, token: int) -> None:
        place = len(self._places)
        if place == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        self._buffer[place] = token
        self._places[token] = place

    def _forget(self, token: int) -> None:
        """Count a token out; after its last one, the last in the buffer takes its place."""
        self._counts[token] -= 1
        if self._counts[token] > 0:
            return
        del self._counts[token]
        place, last = self._places.pop(token), len(self._places)
        if place != last:
            moved = int(self._buffer[last])
            self._buffer[place] = moved
            self._places[moved] = place
