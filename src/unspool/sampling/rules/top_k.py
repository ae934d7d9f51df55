"""Top-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import LogitsRow, RuleState, require


@dataclass(frozen=True)
class TopK:
    """Keeps the k candidates with the largest logits; of tied ones, those with the lowest ids.

    k is a whole number from 1; k = 1 is greedy, and a k beyond the candidates keeps all. Fan, Lewis and
    Dauphin, "Hierarchical neural story generation", 2018.
    """

    value: float
    kind: ClassVar[RuleKind] = RuleKind.TOP_K

    def __post_init__(self) -> None:
        whole = 1 <= self.value < 2**53 and self.value == int(self.value)
        require("top_k", self.value, whole, "a whole number from 1 to 2**53 (0 is off)")

    @property
    def is_off(self) -> bool:
        """Never: how many candidates there will be is not known."""
        return False

    def apply(self, row: LogitsRow, state: RuleState) -> None:
        """Keep the first k of the descending order."""
        row.keep_first(int(self.value))
