"""Sampling: each branch goes on with the token that was drawn for it."""

from __future__ import annotations

from collections.abc import Sequence

from unspool.strategy.base import Branches, RowResult, Strategy


class Sample(Strategy):
    """``n`` independent samples of a prompt; branch i draws with sample index i."""

    together = False

    def __init__(self, n: int) -> None:
        self.width = n

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Append what was drawn; every token is final at once."""
        for row in frontier:
            branches.append(row.branch, row.token, row.figures)
            branches.commit(row.branch)
