"""What a selection is: finished candidates come in, and their order comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unspool.results import Candidate


@dataclass(frozen=True)
class Choice:
    """What a selection made of its candidates."""

    order: tuple[int, ...]
    """Which candidates, by their place among those considered, best first."""
    scores: tuple[float, ...]
    """[candidates] what each was ranked by."""
    tally: tuple[Any, ...] = ()
    considered: int = 0


class Selection(Protocol):
    """A way to choose among the candidates of a request."""

    n: int
    """How many candidates it wants."""

    def settled(self, finished: Sequence[Candidate | None]) -> int | None:
        """The smallest m such that the first m candidates decide it whatever the rest says; None: not yet."""
        ...

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """Order the candidates."""
        ...
