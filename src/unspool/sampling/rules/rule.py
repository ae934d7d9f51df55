"""What a rule is: one transformation of a row of candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from unspool.errors import ParameterError, shown
from unspool.sampling.plan import RuleKind


@dataclass
class LogitsRow:
    """The candidates that a chain has kept so far; at least one, and their largest logit is finite."""

    ids: npt.NDArray[np.int32]
    """[n] token ids, ascending."""
    logits: npt.NDArray[np.float32]
    """[n] their logits, as the rules so far have left them."""

    @classmethod
    def of(cls, logits: npt.NDArray[np.float32]) -> LogitsRow:
        """Every token of a [vocabulary] row of logits that is not banned, that is, not -inf."""
        ids = np.flatnonzero(logits > -np.inf).astype(np.int32)
        return cls(ids, logits[ids])

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Drop every candidate that is not ``chosen`` ([n])."""
        self.ids, self.logits = self.ids[chosen], self.logits[chosen]

    def descending(self) -> npt.NDArray[np.int64]:
        """[n] places of the candidates by descending logit, and ascending id where logits tie."""
        return np.argsort(-self.logits, kind="stable")

    def keep_first(self, count: int) -> None:
        """Keep the first ``count`` candidates of the descending order."""
        chosen = np.zeros(len(self.ids), np.bool_)
        chosen[self.descending()[:count]] = True
        self.keep(chosen)


@dataclass(frozen=True)
class RuleState:
    """What a branch's rules remember of its tokens: a value that can be copied."""

    history: npt.NDArray[np.int32]
    """Token ids in the penalties' scope; a repeated id counts once."""


class Rule(Protocol):
    """One transformation of a row, with one number as its parameter."""

    kind: ClassVar[RuleKind]

    @property
    def value(self) -> float:
        """The parameter."""
        ...

    @property
    def is_off(self) -> bool:
        """Whether the rule leaves every row as it is."""
        ...

    def apply(self, row: LogitsRow, state: RuleState) -> None:
        """Transform ``row`` in place. Comparisons that keep candidates never drop all of them."""
        ...


def require(name: str, value: float, holds: bool, allowed: str) -> None:
    """Raise ``ParameterError`` unless the parameter of the rule ``name`` is in its range."""
    if not holds:
        raise ParameterError(f"{name} must be {allowed}, not {shown(value)}")
