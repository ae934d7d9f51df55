"""The place in a chain from which a drawn token's surprise is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow, Stateless


@dataclass(frozen=True)
class Witness(Stateless):
    """Changes nothing: mirostat and adaptive-p learn how surprising the drawn token was here."""

    name: ClassVar[str] = "witness"
    kind: ClassVar[RuleKind] = RuleKind.WITNESS
    values: ClassVar[tuple[float, ...]] = ()

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Note the candidates."""
        row.witnessed.append((row.ids, row.logits))
