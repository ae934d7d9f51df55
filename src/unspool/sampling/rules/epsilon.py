"""Epsilon sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.distribution import masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.cutoff import Cutoff
from unspool.sampling.rules.rule import Inputs, LogitsRow


@dataclass(frozen=True)
class Epsilon(Cutoff):
    """Keeps the candidates with a probability of at least e; if there is none, the most probable.

    e is from 0 (off) to 1. Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing",
    2022.
    """

    name: ClassVar[str] = "epsilon_cutoff"
    kind: ClassVar[RuleKind] = RuleKind.EPSILON

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(e W)."""
        row.keep_from(math.floor(self.value * float(masses(row.logits).sum())))
