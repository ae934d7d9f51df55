"""Exclude top choices (XTC)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import masses
from unspool.sampling.noise import Purpose, token_bits
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, NoiseSource, Stateless, require


@dataclass(frozen=True)
class Xtc(Stateless):
    """With the given probability, drops all candidates with p >= threshold but the least probable of them.

    Where fewer than two reach the threshold (always, from 0.5 up but for ties), nothing is dropped.
    probability is from 0 (off) to 1, threshold from 0 to 1. p-e-w's "Exclude top choices", 2024, as in
    llama.cpp, which does nothing at a threshold above 0.5. The coin is noise of the position and sample, so
    that the request alone decides it.
    """

    probability: float
    threshold: float = 0.1
    name: ClassVar[str] = "xtc"
    kind: ClassVar[RuleKind] = RuleKind.XTC

    def __post_init__(self) -> None:
        require("xtc_probability", self.probability, 0 <= self.probability <= 1, "from 0 (off) to 1")
        require("xtc_threshold", self.threshold, 0 <= self.threshold <= 1, "from 0 to 1")

    @property
    def values(self) -> tuple[float, ...]:
        """Probability and threshold."""
        return (self.probability, self.threshold)

    @property
    def is_off(self) -> bool:
        """At probability 0."""
        return self.probability == 0

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Keep what is not among w >= L - (L >> 21) with L = floor(threshold W), and the last that is."""
        if not coin(inputs.noise) < self.probability:
            return
        weights = masses(row.logits)
        level = math.floor(self.threshold * float(weights.sum()))
        top = weights >= level - (level >> 21)
        if np.count_nonzero(top) > 1:
            order = row.descending()
            top[order[top[order]][-1]] = False
            row.keep(~top)


def coin(noise: NoiseSource) -> float:
    """Uniform in (0, 1): (bits + 1/2) / 2**32 of token 0's coin."""
    bits = token_bits(noise.key, np.zeros(1, np.int32), noise.position, noise.sample_index, Purpose.COIN)
    return (float(bits[0]) + 0.5) * 2.0**-32
