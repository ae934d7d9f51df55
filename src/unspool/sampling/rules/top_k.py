"""Top-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.plan import RuleKind, Ties
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class TopK(Stateless):
    """Keeps the k candidates with the largest logits; of tied ones, those with the lowest ids.

    k is a whole number from 1; k = 1 is greedy, and a k beyond the candidates keeps all. Fan, Lewis and
    Dauphin, "Hierarchical neural story generation", 2018. ``ties``: which of those that equal the k-th are
    kept; ``Ties.ALL`` may keep more than k.
    """

    value: float
    ties: Ties = Ties.LOWEST_ID
    name: ClassVar[str] = "top_k"
    kind: ClassVar[RuleKind] = RuleKind.TOP_K

    def __post_init__(self) -> None:
        whole = 1 <= self.value < 2**53 and self.value == int(self.value)
        require("top_k", self.value, whole, "a whole number from 1 to 2**53 (0 is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """k, and which ties."""
        return (self.value, self.ties)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep the first k of the descending order."""
        row.keep_smallest(-row.logits, np.ones(len(row.ids), np.int64), int(self.value), self.ties)
