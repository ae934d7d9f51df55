"""Top-n-sigma."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class TopNSigma(Stateless):
    """Keeps z >= max z - n * sigma, sigma the standard deviation of the candidates' logits.

    n is from 0 (the most probable and its ties) to 1e6. A temperature before it changes nothing in what is
    kept. Tang et al., "Top-n-sigma: not all logits are you need", 2024.
    """

    value: float
    name: ClassVar[str] = "top_n_sigma"
    kind: ClassVar[RuleKind] = RuleKind.TOP_N_SIGMA

    def __post_init__(self) -> None:
        require("top_n_sigma", self.value, 0 <= self.value <= 1e6, "from 0 to 1e6 (None is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """n."""
        return (self.value,)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep d <= n * sigma, with d = max z - z in double precision."""
        d = float(row.logits.max()) - row.logits.astype(np.float64)
        mean = sum_by_lane(row.ids, d) / len(d)
        variance = sum_by_lane(row.ids, d * d) / len(d) - mean * mean
        row.keep(d <= self.value * math.sqrt(max(variance, 0.0)))


def sum_by_lane(ids: npt.NDArray[np.int32], x: npt.NDArray[np.float64]) -> float:
    """The sum of x in an order that the token ids fix: of each id modulo 16 in order, then lane by lane."""
    total = 0.0
    for lane in np.bincount(ids & 15, weights=x, minlength=16).tolist():
        total += lane
    return total
