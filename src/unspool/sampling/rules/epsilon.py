"""Epsilon sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.distribution import masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class Epsilon(Stateless):
    """Keeps the candidates with a probability of at least e; if there is none, the most probable.

    e is from 0 (off) to 1. Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing",
    2022.
    """

    value: float
    name: ClassVar[str] = "epsilon_cutoff"
    kind: ClassVar[RuleKind] = RuleKind.EPSILON

    def __post_init__(self) -> None:
        require("epsilon_cutoff", self.value, 0 <= self.value <= 1, "from 0 (off) to 1")

    @property
    def values(self) -> tuple[float, ...]:
        """e."""
        return (self.value,)

    @property
    def is_off(self) -> bool:
        """At 0."""
        return self.value == 0

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(e W)."""
        row.keep_from(math.floor(self.value * float(masses(row.logits).sum())))
