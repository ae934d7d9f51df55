"""Top-p, or nucleus sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import LogitsRow, RuleState, require


@dataclass(frozen=True)
class TopP:
    """Keeps the smallest set of most probable candidates whose probability reaches p.

    The candidate that crosses p is kept; of tied ones, those with the lowest ids. p is from 0 (the most
    probable alone) to 1 (off). Holtzman, Buys, Du, Forbes and Choi, "The curious case of neural text
    degeneration", 2019.
    """

    value: float
    kind: ClassVar[RuleKind] = RuleKind.TOP_P

    def __post_init__(self) -> None:
        require("top_p", self.value, 0 <= self.value <= 1, "from 0 to 1 (1 is off)")

    @property
    def is_off(self) -> bool:
        """At 1."""
        return self.value >= 1

    def apply(self, row: LogitsRow, state: RuleState) -> None:
        """Keep the first candidates of the descending order, until they reach floor(p W) - (W >> 24).

        W / 2**24 is the rounding of float32 logits: without it a set of probability exactly p would, as
        often as not, come out an ulp short and take one candidate more.
        """
        if self.is_off:
            return
        weights = masses(row.logits)
        total = int(weights.sum())
        target = math.floor(self.value * float(total)) - (total >> 24)
        reached = np.cumsum(weights[row.descending()])
        row.keep_first(int(np.searchsorted(reached, target)) + 1)
