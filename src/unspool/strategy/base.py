"""What a strategy is: rows come in, and branches grow, fork and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from unspool.results import FinishReason, RuleTrace

Ranked = tuple[tuple[int, float, float], ...]
"""Tokens, best first, with their log-probabilities before and after the rules."""


class Figures(NamedTuple):
    """What the model, and the rules, thought of a drawn token; log-probabilities are natural."""

    logprob: float
    """Under the model's own law."""
    processed_logprob: float
    """Under the law that it was drawn from."""
    entropy: float
    """Of the model's own law, in nats."""
    surprise: float
    """-log p under the law that reached the rule that learns from it; 0 where none does."""
    rank: int
    """In the model's own law, from 0."""
    kept: int
    """How many candidates the rules kept."""
    best: Ranked = ()
    """The most probable tokens of the model's own law."""
    best_processed: Ranked = ()
    """The most probable tokens of the law that it was drawn from."""
    trace: tuple[RuleTrace, ...] = ()
    """What each rule did, if that was asked for."""


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
