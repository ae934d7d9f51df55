"""What a strategy is: rows come in, and branches grow, fork and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from unspool.results import FinishReason

Figures = tuple[float, float, int, float, int, tuple[tuple[int, float], ...]]
"""Raw log-probability, processed one, rank, entropy, kept, and the most probable (id, log-probability)."""


class RowResult(NamedTuple):
    """What came of the row after a branch's last token."""

    branch: Any
    """The branch, by the name that is handed back."""
    token: int
    """The token that was drawn."""
    figures: Figures
    """What the model thought of it."""


class Branches(Protocol):
    """What a strategy may do with its request's branches; each is to it a name."""

    def append(self, branch: Any, token: int, figures: Figures) -> None:
        """Add a token to a branch, for the time being: rules see it, a caller does not."""
        ...

    def commit(self, branch: Any) -> bool:
        """Make a branch's tokens final: they become text, are matched for stops, may be streamed and shared.

        True where one of them ended the branch: the tokens after it are gone.
        """
        ...

    def fork(self, branch: Any) -> Any:
        """A second branch of the same tokens, which shares everything that was computed for them."""
        ...

    def drop(self, branch: Any) -> None:
        """End a branch that is no result."""
        ...

    def finish(self, branch: Any, reason: FinishReason) -> None:
        """Commit a branch's tokens and end it as a result, if none of them did."""
        ...


class Strategy(Protocol):
    """How a request's branches grow."""

    width: int
    """How many branches a request starts with, each at the end of the prompt."""
    together: bool
    """Whether ``grow`` wants the rows of all growing branches at once; else it takes them as they come."""

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Grow each branch of the frontier by at least a token, or end it.

        It is called again, within the same step, with the rows of drafted tokens: where a branch's new last
        token is one that was drafted after it, its next row is already there.
        """
        ...
