"""Presence penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.rules.edit import Add
from unspool.sampling.rules.frequency_penalty import Frequencies
from unspool.sampling.rules.rule import Float32Array, require
from unspool.sampling.rules.scope import Scope


class Presences(Frequencies):
    """Tokens from which the penalty is subtracted once."""

    __slots__ = ()

    @property
    def amounts(self) -> Float32Array:
        """[m] -penalty."""
        return np.full(len(self.tokens), -self.penalty, np.float32)


@dataclass(frozen=True)
class PresencePenalty(Add):
    """z becomes z - b for the tokens in scope, however often they are there.

    b is from -100 to 100; 0 is off. OpenAI's ``presence_penalty``.
    """

    value: float
    scope: Scope = "output"
    name: ClassVar[str] = "presence_penalty"

    def __post_init__(self) -> None:
        require("presence_penalty", self.value, -100 <= self.value <= 100, "from -100 to 100 (0 is off)")

    @property
    def is_off(self) -> bool:
        """At 0."""
        return self.value == 0

    def memory(self, prompt: Sequence[int]) -> Presences:
        """The tokens in scope."""
        return Presences(self.scope, prompt, self.value)
