"""Locally typical sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import Distribution, below_max
from unspool.sampling.plan import RuleKind, Ties
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class Typical(Stateless):
    """Keeps the smallest set, by ascending abs(-log p - H), whose probability reaches t.

    The candidates whose surprise is nearest the entropy H come first, so that the most probable may go. t is
    from 0 to 1 (off). Meister, Pimentel, Wiher and Cotterell, "Locally typical sampling", 2022. ``ties``:
    which of those as near as the last are kept.
    """

    value: float
    ties: Ties = Ties.LOWEST_ID
    name: ClassVar[str] = "typical_p"
    kind: ClassVar[RuleKind] = RuleKind.TYPICAL

    def __post_init__(self) -> None:
        require("typical_p", self.value, 0 <= self.value <= 1, "from 0 to 1 (1 is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """t, and which ties."""
        return (self.value, self.ties)

    @property
    def is_off(self) -> bool:
        """At 1."""
        return self.value >= 1

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep the nearest until they reach floor(t W) - (W >> 24).

        With d = max z - z both -log p = d + log(W / 2**40) and H = mean d + log(W / 2**40): their difference
        is that of d from its mean.
        """
        if self.is_off:
            return
        law = Distribution.of(row.ids, row.logits)
        score = np.abs(-below_max(row.logits) - np.float32(law.mean_depth))
        target = max(1, math.floor(self.value * float(law.total)) - (law.total >> 24))
        row.keep_smallest(score, law.weights, target, self.ties)
