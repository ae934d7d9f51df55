"""Top-p, or nucleus sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.distribution import masses
from unspool.sampling.plan import RuleKind, Ties
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class TopP(Stateless):
    """Keeps the smallest set of most probable candidates whose probability reaches p.

    The candidate that crosses p is kept; of tied ones, those with the lowest ids. p is from 0 (the most
    probable alone) to 1 (off). Holtzman, Buys, Du, Forbes and Choi, "The curious case of neural text
    degeneration", 2019. ``ties``: which of those that equal the crossing one are kept; ``strict``: whether
    the set must weigh more than p, as some engines have it.
    """

    value: float
    ties: Ties = Ties.LOWEST_ID
    strict: bool = False
    name: ClassVar[str] = "top_p"
    kind: ClassVar[RuleKind] = RuleKind.TOP_P

    def __post_init__(self) -> None:
        require("top_p", self.value, 0 <= self.value <= 1, "from 0 to 1 (1 is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """p, which ties, and whether the boundary is strict."""
        return (self.value, self.ties, self.strict)

    @property
    def is_off(self) -> bool:
        """At 1."""
        return self.value >= 1

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep the first candidates of the descending order, until they reach floor(p W) - (W >> 24).

        W / 2**24 is the rounding of float32 logits: without it a set of probability exactly p would, as
        often as not, come out an ulp short and take one candidate more. Where the boundary is strict they
        must pass floor(p W) + (W >> 24).
        """
        if self.is_off:
            return
        weights = masses(row.logits)
        total = int(weights.sum())
        exact, slack = math.floor(self.value * float(total)), total >> 24
        target = exact + slack + 1 if self.strict else max(1, exact - slack)
        row.keep_smallest(-row.logits, weights, target, self.ties)
