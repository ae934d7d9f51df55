"""Min-p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.distribution import UNIT
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.cutoff import Cutoff
from unspool.sampling.rules.rule import Inputs, LogitsRow


@dataclass(frozen=True)
class MinP(Cutoff):
    """Keeps the candidates that are at least m times as probable as the most probable one.

    m is from 0 (off) to 1 (the most probable and those that tie with it). Nguyen et al., "Turning up the
    heat: min-p sampling for creative and coherent LLM outputs", 2024.
    """

    name: ClassVar[str] = "min_p"
    kind: ClassVar[RuleKind] = RuleKind.MIN_P

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(2**40 m), 2**40 being the largest w."""
        row.keep_from(math.floor(self.value * UNIT))
