"""Top-a."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.distribution import UNIT, masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.cutoff import Cutoff
from unspool.sampling.rules.rule import Inputs, LogitsRow


@dataclass(frozen=True)
class TopA(Cutoff):
    """Keeps p >= a * (max p) ** 2: the surer the model, the fewer.

    a is from 0 (off) to 1. First in BlinkDL's RWKV-LM ("top-a sampling", 2022), with the exponent that is
    usual, 2.
    """

    name: ClassVar[str] = "top_a"
    kind: ClassVar[RuleKind] = RuleKind.TOP_A

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep w from floor(a 2**40 (2**40 / W)): max p is 2**40 / W."""
        total = float(masses(row.logits).sum())
        row.keep_from(math.floor(self.value * UNIT * (UNIT / total)))
