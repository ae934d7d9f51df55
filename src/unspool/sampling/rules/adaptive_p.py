"""Adaptive-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import UNIT, below_max, exp, masses
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import (
    NO_AMOUNTS,
    NO_TOKENS,
    Facts,
    Float32Array,
    Inputs,
    LogitsRow,
    Stateless,
    require,
)


@dataclass(frozen=True)
class AdaptiveP(Stateless):
    """Prefers candidates whose probability is near a target, which follows what was drawn.

    z becomes 5 - 10 u**2 / (1 + u) with u = abs(p - aim) / 0.3; aim = 2 target - the running mean of the
    drawn tokens' p, from 0 to 1, and the mean starts at the target. target is from 0 to 1, decay (of what the
    mean remembers) from 0 to 0.99. MrJackSpade's "Adaptive-P", 2025, as in llama.cpp.
    """

    target: float
    decay: float = 0.9
    name: ClassVar[str] = "adaptive_p"
    kind: ClassVar[RuleKind] = RuleKind.ADAPTIVE_P

    def __post_init__(self) -> None:
        require("adaptive_target", self.target, 0 <= self.target <= 1, "from 0 to 1 (None is off)")
        require("adaptive_decay", self.decay, 0 <= self.decay <= 0.99, "from 0 to 0.99")

    @property
    def values(self) -> tuple[float, ...]:
        """The first token's aim."""
        return (self.target,)

    def memory(self, prompt: Sequence[int]) -> AdaptiveMemory:
        """The running mean."""
        weight = 1 / (1 - self.decay)
        return AdaptiveMemory(self, self.target * weight, weight)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """As for the first token; later ones have another aim."""
        row.take(towards(row.logits, self.target))


def towards(logits: Float32Array, aim: float) -> Float32Array:
    """[n] the logits of candidates that are liked for a probability near ``aim``, in float32."""
    f32 = np.float32
    p = exp(below_max(logits)) * f32(UNIT / float(masses(logits).sum()))
    u = np.abs(p - f32(aim)) * f32(1 / 0.3)
    result: Float32Array = f32(5) - f32(10) * u * u / (f32(1) + u)
    return result


class AdaptiveMemory:
    """The decaying sum of drawn probabilities, and of their weights."""

    __slots__ = ("rule", "total", "weight")

    tokens = NO_TOKENS
    amounts = NO_AMOUNTS

    def __init__(self, rule: AdaptiveP, total: float, weight: float) -> None:
        self.rule, self.total, self.weight = rule, total, weight

    @property
    def values(self) -> tuple[float, ...]:
        """The aim."""
        return (min(1.0, max(0.0, 2 * self.rule.target - self.total / self.weight)),)

    def extend(self, token: int, facts: Facts) -> None:
        """Take in the probability of a drawn token."""
        p = float(exp(np.array([-facts.surprise], np.float32))[0])
        self.total = p + self.rule.decay * self.total
        self.weight = 1 + self.rule.decay * self.weight

    def precede(self, token: int) -> None:
        """Nothing changes: only what is generated counts."""

    def fork(self) -> AdaptiveMemory:
        """The same, going its own way."""
        return AdaptiveMemory(self.rule, self.total, self.weight)
