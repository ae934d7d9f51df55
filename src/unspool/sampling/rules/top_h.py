"""Top-H."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import Distribution
from unspool.sampling.noise import natural_log
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class TopH(Stateless):
    """Keeps the most probable candidates whose own law has an entropy of at most a * H.

    H is the entropy of all candidates; the set grows by descending probability until its law, renormalized,
    would pass a * H. a is from 0 (the most probable alone) to 1. Potraghloo et al., "Top-H decoding:
    adapting the creativity and coherence with bounded entropy in text generation", 2025, over the whole
    vocabulary.

    cap: only so many of the most probable are looked at, and H is theirs; 0: all. summed: compare the
    partial sums of -p log p with a * H instead, without renormalizing. Transformers' rule is summed with a
    cap of 100.
    """

    value: float
    cap: int = 0
    summed: bool = False
    name: ClassVar[str] = "top_h"
    kind: ClassVar[RuleKind] = RuleKind.TOP_H

    def __post_init__(self) -> None:
        require("top_h", self.value, 0 <= self.value <= 1, "from 0 to 1 (None is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """a, the cap, and whether entropy is summed."""
        return (self.value, self.cap, self.summed)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Entropies from partial sums of masses and moments: log(w / 2**40) + m / w of the first so many.

        They pass a * H where they are above it by H / 2**24, the rounding of float32 logits: 4 of 16 equal
        candidates have exactly half the entropy of all, and those of a = 1 never more than all.
        """
        if self.cap:
            row.keep_first(self.cap)
        law = Distribution.of(row.ids, row.logits)
        order = row.descending()
        mass = np.cumsum(law.weights[order]).astype(np.float64)
        moment = np.cumsum(law.moments[order]).astype(np.float64)
        if self.summed:
            entropies = (moment + law.log_total * mass) / float(law.total)
        else:
            entropies = natural_log(mass * 2.0**-40) + moment / mass
        past = np.flatnonzero(entropies > self.value * law.entropy + law.entropy * 2.0**-24)
        row.keep_first(max(1, int(past[0])) if len(past) else len(order))
