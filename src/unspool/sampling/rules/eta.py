"""Eta sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import Distribution, exp
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.cutoff import Cutoff
from unspool.sampling.rules.rule import Inputs, LogitsRow


@dataclass(frozen=True)
class Eta(Cutoff):
    """Keeps p >= min(e, sqrt(e) exp(-H)), H the entropy; if there is none, the most probable.

    e is from 0 (off) to 1. Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing",
    2022.
    """

    name: ClassVar[str] = "eta_cutoff"
    kind: ClassVar[RuleKind] = RuleKind.ETA

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(threshold W); exp is the project's, of the entropy in float32."""
        law = Distribution.of(row.ids, row.logits)
        spread = float(exp(np.array([-law.entropy], np.float32))[0])
        row.keep_from(math.floor(min(self.value, math.sqrt(self.value) * spread) * float(law.total)))
