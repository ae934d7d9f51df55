"""Dynamic temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import Distribution, exp
from unspool.sampling.noise import natural_log
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require


@dataclass(frozen=True)
class DynamicTemperature(Stateless):
    """z becomes z / T with T = low + (high - low) * (H / log n) ** exponent: the surer, the colder.

    H is the entropy of the n candidates. low and high are 0 to 2e9, exponent from 0.01 to 100; a T below
    1e-9 leaves the most probable candidate alone, and so few as one are left as they are. kalomaze's
    "Dynamic temperature sampling", 2023, as in llama.cpp's ``temp_ext`` (``dynatemp_range`` r around a
    temperature t is low = max(0, t - r), high = t + r).
    """

    low: float
    high: float
    exponent: float = 1.0
    name: ClassVar[str] = "temperature"
    kind: ClassVar[RuleKind] = RuleKind.DYNAMIC_TEMPERATURE

    def __post_init__(self) -> None:
        holds = 0 <= self.low <= self.high <= 2e9
        require("a dynamic temperature's range", (self.low, self.high), holds, "within 0 to 2e9")
        require("dynatemp_exponent", self.exponent, 0.01 <= self.exponent <= 100, "from 0.01 to 100")

    @property
    def values(self) -> tuple[float, ...]:
        """Low, high, exponent."""
        return (self.low, self.high, self.exponent)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Divide in float32 by the temperature that the entropy gives."""
        if len(row.ids) == 1:
            return
        law = Distribution.of(row.ids, row.logits)
        share = min(1.0, law.entropy / float(natural_log(float(len(row.ids)))))
        temperature = self.low + (self.high - self.low) * power(share, self.exponent)
        if temperature < 1e-9:
            row.keep_first(1)
        else:
            row.divide(temperature)


def power(x: float, exponent: float) -> float:
    """x ** exponent for x from 0 to 1, through the project's own logarithm and exponential."""
    if exponent == 1 or x == 1:
        return x
    if x <= 0:
        return 0.0
    return float(exp(np.array([exponent * float(natural_log(x))], np.float32))[0])
