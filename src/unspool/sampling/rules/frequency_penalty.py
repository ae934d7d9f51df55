"""Frequency penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from unspool.sampling.rules.counts import TokenCounts
from unspool.sampling.rules.edit import Add
from unspool.sampling.rules.rule import Float32Array, require
from unspool.sampling.rules.scope import Scope


class Frequencies(TokenCounts):
    """Counts that are subtracted, times the penalty."""

    __slots__ = ("penalty",)

    def __init__(self, scope: Scope, prompt: Sequence[int], penalty: float) -> None:
        super().__init__(scope, prompt)
        self.penalty = np.float32(penalty)

    @property
    def amounts(self) -> Float32Array:
        """[m] -penalty * count, in float32."""
        amounts: Float32Array = self.counts * -self.penalty
        return amounts

    def fork(self) -> Self:
        """The same with counts of its own."""
        twin = super().fork()
        twin.penalty = self.penalty
        return twin


@dataclass(frozen=True)
class FrequencyPenalty(Add):
    """z becomes z - a * count, for the tokens in scope; it subtracts whatever the sign of z.

    a is from -100 to 100; 0 is off, below 0 it makes repetition likelier. OpenAI's ``frequency_penalty``.
    """

    value: float
    scope: Scope = "output"
    name: ClassVar[str] = "frequency_penalty"

    def __post_init__(self) -> None:
        require("frequency_penalty", self.value, -100 <= self.value <= 100, "from -100 to 100 (0 is off)")

    @property
    def is_off(self) -> bool:
        """At 0."""
        return self.value == 0

    def memory(self, prompt: Sequence[int]) -> Frequencies:
        """The counts of the tokens in scope."""
        return Frequencies(self.scope, prompt, self.value)
