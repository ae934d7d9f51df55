"""Tail-free sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import UNIT, masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class TailFree(Stateless):
    """Cuts where the curve of descending probabilities has done most of its bending.

    Of the n probabilities in descending order the n - 2 absolute second differences are summed; candidate 0
    stays, candidate i + 1 stays while the first i + 1 of them make at most z of the sum, and the last goes.
    z is from 0 to 1 (off); two candidates or fewer, or differences that are all 0, are left as they are. A
    candidate less than 2**-16 times as probable as the best counts as one of probability 0: all of them
    together bend less than twice as much as the first of them, and need no order.
    Phenix and Egan, "Tail free sampling", 2019, and their implementation.
    """

    value: float
    name: ClassVar[str] = "tail_free"
    kind: ClassVar[RuleKind] = RuleKind.TAIL_FREE

    def __post_init__(self) -> None:
        require("tail_free", self.value, 0 <= self.value <= 1, "from 0 to 1 (1 is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """z."""
        return (self.value,)

    @property
    def is_off(self) -> bool:
        """At 1."""
        return self.value >= 1

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Count sums of up to floor(z S) + (S >> 24), S the sum of all, in fixed point."""
        if self.is_off or len(row.ids) < 3:
            return
        weights = masses(row.logits[row.descending()])
        weights[weights < UNIT >> 16] = 0
        bends = np.abs(weights[:-2] - 2 * weights[1:-1] + weights[2:])
        total = int(bends.sum())
        if total == 0:
            return
        most = math.floor(self.value * float(total)) + (total >> 24)
        row.keep_first(1 + int(np.count_nonzero(np.cumsum(bends) <= most)))
