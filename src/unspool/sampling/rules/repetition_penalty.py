"""Repetition penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.counts import TokenCounts
from unspool.sampling.rules.rule import Inputs, LogitsRow, require
from unspool.sampling.rules.scope import Scope


@dataclass(frozen=True)
class RepetitionPenalty:
    """z becomes z / r if z > 0 and z * r otherwise, once for each distinct token in scope.

    r is from 1e-4 to 1e4; above 1 it makes repetition rarer, 1 is off. Keskar et al., "CTRL: a
    conditional transformer language model for controllable generation", 2019.
    """

    value: float
    scope: Scope = "output"
    name: ClassVar[str] = "repetition_penalty"
    kind: ClassVar[RuleKind] = RuleKind.REPETITION_PENALTY

    def __post_init__(self) -> None:
        require(
            "repetition_penalty", self.value, 1e-4 <= self.value <= 1e4, "from 0.0001 to 10000 (1 is off)"
        )

    @property
    def values(self) -> tuple[float, ...]:
        """r."""
        return (self.value,)

    @property
    def is_off(self) -> bool:
        """At 1."""
        return self.value == 1

    def memory(self, prompt: Sequence[int]) -> TokenCounts:
        """The tokens in scope."""
        return TokenCounts(self.scope, prompt)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Penalize in float32."""
        r = np.float32(self.value)
        z = row.logits
        with np.errstate(over="ignore"):
            row.take(np.where(np.isin(row.ids, inputs.tokens), np.where(z > 0, z / r, z * r), z))
