"""p-less sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import UNIT, below_max, exp, fixed_point, masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless


@dataclass(frozen=True)
class PLess(Stateless):
    """Keeps p >= sum(p ** 2), the chance that two draws agree: a threshold without a parameter.

    Tan et al., "p-less sampling: a robust hyperparameter-free approach for LLM decoding", 2025.
    """

    name: ClassVar[str] = "p_less"
    kind: ClassVar[RuleKind] = RuleKind.P_LESS
    values: ClassVar[tuple[float, ...]] = ()

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(Q 2**40 / W), Q the sum of round(2**40 e**2) with e = exp(z - max z)."""
        e = exp(below_max(row.logits))
        collision = float(fixed_point(np.multiply(e, e)).sum())
        row.keep_from(math.floor(collision * (UNIT / float(masses(row.logits).sum()))))
