"""What truncations by a least probability have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.rules.rule import Stateless, require


@dataclass(frozen=True)
class Cutoff(Stateless):
    """A rule with one parameter, from 0 (off) to 1, that says how probable a candidate must be to stay."""

    value: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        require(self.name, self.value, 0 <= self.value <= 1, "from 0 (off) to 1")

    @property
    def values(self) -> tuple[float, ...]:
        """The parameter."""
        return (self.value,)

    @property
    def is_off(self) -> bool:
        """At 0."""
        return self.value == 0
