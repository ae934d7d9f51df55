"""Minimum tokens, and end-of-text suppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.rules.edit import Ban
from unspool.sampling.rules.rule import NO_AMOUNTS, NO_TOKENS, Facts, Int32Array, require


@dataclass(frozen=True)
class MinimumTokens(Ban):
    """Bans the tokens that would end the text before ``count`` tokens are generated; ``None``: always.

    As vLLM's ``min_tokens`` and Transformers' ``min_new_tokens``.
    """

    count: int | None
    end_ids: tuple[int, ...]
    name: ClassVar[str] = "minimum_tokens"

    def __post_init__(self) -> None:
        require(
            "min_tokens", self.count, self.count is None or self.count >= 0, "a whole number from 0 (off)"
        )

    @property
    def is_off(self) -> bool:
        """At 0, and where nothing ends the text."""
        return self.count == 0 or not self.end_ids

    def memory(self, prompt: Sequence[int]) -> EndMemory:
        """How many tokens are to come before an end may."""
        return EndMemory(np.unique(np.array(self.end_ids, np.int32)), self.count)


class EndMemory:
    """How many more tokens are generated before the text may end; ``None``: it may not."""

    __slots__ = ("_end_ids", "_left")

    amounts = NO_AMOUNTS
    values = None

    def __init__(self, end_ids: Int32Array, left: int | None) -> None:
        self._end_ids, self._left = end_ids, left

    @property
    def tokens(self) -> Int32Array:
        """[m] the tokens that may not come yet."""
        return NO_TOKENS if self._left == 0 else self._end_ids

    def extend(self, token: int, facts: Facts) -> None:
        """Count a token."""
        if self._left:
            self._left -= 1

    def precede(self, token: int) -> None:
        """Nothing changes: only what is generated counts."""

    def fork(self) -> EndMemory:
        """The same, going its own way."""
        return EndMemory(self._end_ids, self._left)
