"""Eta sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import Distribution, exp
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class Eta(Stateless):
    """Keeps p >= min(e, sqrt(e) exp(-H)), H the entropy; if there is none, the most probable.

    e is from 0 (off) to 1. Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing",
    2022.
    """

    value: float
    name: ClassVar[str] = "eta_cutoff"
    kind: ClassVar[RuleKind] = RuleKind.ETA

    def __post_init__(self) -> None:
        require("eta_cutoff", self.value, 0 <= self.value <= 1, "from 0 (off) to 1")

    @property
    def values(self) -> tuple[float, ...]:
        """e."""
        return (self.value,)

    @property
    def is_off(self) -> bool:
        """At 0."""
        return self.value == 0

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(threshold W); exp is the project's, of the entropy in float32."""
        law = Distribution.of(row.ids, row.logits)
        spread = float(exp(np.array([-law.entropy], np.float32))[0])
        row.keep_from(math.floor(min(self.value, math.sqrt(self.value) * spread) * float(law.total)))
