"""The finished texts that a beam search keeps, and what a score makes of a sum and a length."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Key = tuple[int, float]
"""Orders hypotheses as their scores do, and where a score would overflow too."""


class Scoring:
    """score(y) = total / |y|**length_penalty; |y| counts the generated tokens, the last included.

    A penalty above 0 favours long texts (totals are negative), one below 0 short ones; 0 compares sums.
    """

    def __init__(self, length_penalty: float, max_tokens: int) -> None:
        self.length_penalty = length_penalty
        self.max_tokens = max_tokens
        self._fits = abs(length_penalty) * math.log(max_tokens) < 600  # no power of a length leaves a float

    def score(self, total: float, length: int) -> float:
        """As it is reported: 0 or infinite where it is beyond a float."""
        if self._fits:
            return float(total / length**self.length_penalty)
        power = self.length_penalty * math.log(length)
        if not total or abs(power) < 600:
            return total / math.exp(power) if total else 0.0
        return total * (0.0 if power > 0 else math.inf)

    def key(self, total: float, length: int) -> Key:
        """What scores are compared by: the score, or its sign and the logarithm of its size."""
        if self._fits:
            return 0, total / length**self.length_penalty
        sign = (total > 0) - (total < 0)
        return sign, sign * (math.log(abs(total)) - self.length_penalty * math.log(length)) if sign else 0.0

    def bound(self, total: float, length: int) -> Key:
        """The best that a growing text can come to, if what is added to its total is never above 0.

        With the total as it is, the score is monotone in the length: it is best at one of the two ends.
        """
        return max(self.key(total, length + 1), self.key(total, self.max_tokens))


class Hypothesis(NamedTuple):
    """A finished text."""

    branch: Any
    total: float
    length: int
    key: Key
    node: int
    """Its last token in the search tree."""


class Hypotheses:
    """The best ``capacity`` of the texts that have finished, best first; of those that tie, the earlier."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.kept: list[Hypothesis] = []

    @property
    def full(self) -> bool:
        """Whether a further one must beat the worst."""
        return len(self.kept) == self.capacity

    def takes(self, key: Key) -> bool:
        """Whether one of this score would be kept."""
        return not self.full or key > self.kept[-1].key

    def add(self, hypothesis: Hypothesis) -> Hypothesis | None:
        """Keep a text, if it is good enough. Returns the one that is not kept (any more)."""
        at = sum(kept.key >= hypothesis.key for kept in self.kept)
        self.kept.insert(at, hypothesis)
        return self.kept.pop() if len(self.kept) > self.capacity else None
