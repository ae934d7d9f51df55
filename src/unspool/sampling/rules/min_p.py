"""Min-p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.distribution import UNIT, masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import LogitsRow, RuleState, require


@dataclass(frozen=True)
class MinP:
    """Keeps the candidates that are at least m times as probable as the most probable one.

    m is from 0 (off) to 1 (the most probable and those that tie with it). Nguyen et al., "Turning up the
    heat: min-p sampling for creative and coherent LLM outputs", 2024.
    """

    value: float
    kind: ClassVar[RuleKind] = RuleKind.MIN_P

    def __post_init__(self) -> None:
        require("min_p", self.value, 0 <= self.value <= 1, "from 0 (off) to 1")

    @property
    def is_off(self) -> bool:
        """At 0."""
        return self.value == 0

    def apply(self, row: LogitsRow, state: RuleState) -> None:
        """Keep w >= L - (L >> 21), with L = floor(2**40 m), 2**40 being the largest w.

        L / 2**21 is the rounding of float32 logits and of exp, so that p exactly m times the largest stays.
        """
        level = math.floor(self.value * UNIT)
        row.keep(masses(row.logits) >= level - (level >> 21))
