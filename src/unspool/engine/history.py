"""The tokens that a branch's penalties see."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt


class PenaltyHistory:
    """The distinct tokens in a branch's penalty scope, kept up to date token by token.

    scope: ``"output"`` sees generated tokens, ``"all"`` the prompt's too, a number the last n of both.
    """

    __slots__ = ("_array", "_counts", "_window", "scope")

    def __init__(self, scope: Literal["output", "all"] | int, prompt: Sequence[int]) -> None:
        self.scope = scope
        self._counts: Counter[int] = Counter()
        self._window: deque[int] = deque()
        self._array: npt.NDArray[np.int32] | None = None
        if scope == "all":
            self._counts.update(prompt)
        elif scope != "output":
            self.extend(prompt[-scope:])

    @property
    def array(self) -> npt.NDArray[np.int32]:
        """[m] the distinct tokens in scope, in no particular order."""
        if self._array is None:
            self._array = np.fromiter(self._counts, dtype=np.int32, count=len(self._counts))
        return self._array

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in generated tokens; the oldest leave a window."""
        counts, before = self._counts, len(self._counts)
        removed = False
        for token in tokens:
            counts[token] += 1
            if isinstance(self.scope, int):
                self._window.append(token)
                if len(self._window) > self.scope:
                    oldest = self._window.popleft()
                    counts[oldest] -= 1
                    if counts[oldest] == 0:
                        del counts[oldest]
                        removed = True
        if removed or len(counts) != before:
            self._array = None
