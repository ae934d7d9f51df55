"""Temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless, require
from unspool.sampling.rules.top_k import TopK


@dataclass(frozen=True)
class ZeroTemperature(TopK):
    """The limit of a temperature that falls to 0: the most probable candidate, of tied ones the lowest id."""

    value: float = 1
    name: ClassVar[str] = "temperature"


@dataclass(frozen=True)
class Temperature(Stateless):
    """z becomes z / T: below 1 the law sharpens, above 1 it flattens, 1 is off.

    T is from 1e-9 to 1e9. Temperature 0 is no rule of this kind: its limit is top-k with k = 1.
    """

    value: float
    name: ClassVar[str] = "temperature"
    kind: ClassVar[RuleKind] = RuleKind.TEMPERATURE

    def __post_init__(self) -> None:
        require("temperature", self.value, 1e-9 <= self.value <= 1e9, "0 or from 1e-9 to 1e9 (1 is off)")

    @property
    def values(self) -> tuple[float, ...]:
        """T."""
        return (self.value,)

    @property
    def is_off(self) -> bool:
        """At 1."""
        return self.value == 1

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Divide in float32."""
        row.divide(self.value)
