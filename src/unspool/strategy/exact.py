"""Exact search: the most probable sequences, found by depth-first branch and bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unspool.conversion import whole_between
from unspool.errors import ParameterError, SearchError
from unspool.strategy.base import Branches, RowResult, RowWant, Strategy, Task

MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class Exact:
    """The n most probable sequences of all (Stahlberg and Byrne 2019).

    Sequences end with an end token, a stop string or ``max_tokens``; the search goes depth first to the most
    probable token, and never where the log-probability, which only falls, is already no better than the n-th
    best sequence found. It takes as many steps as it looks at rows, and there may be very many: short
    ``max_tokens``, or rules that leave few tokens, are what it is for.

    rows: how many rows it may look at; beyond that the request ends with a ``SearchError``.

    Raises ``ParameterError`` for what is out of range.
    """

    rows: int = 10_000
    uses_model_settings = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole_between("rows", self.rows, 1, MOST_ROWS))

    def begin(self, task: Task) -> Strategy:
        """The search of one request. Raises ``ParameterError`` where scores may rise with a token."""
        if task.learns:
            raise ParameterError(
                "mirostat and adaptive-p learn from draws, and exact search draws nothing: leave them out"
            )
        if task.transformers:
            raise ParameterError(
                'order="transformers" scores a search without renormalizing, and a sum that may rise has no '
                "bound: exact search goes with other orders, such as a tuple of the same names"
            )
        return ExactSearch(self.rows, task.n)


class Level:
    """A prefix that is being searched: its children that may still be good enough, most probable first."""

    def __init__(self, total: float, row: RowResult, least: float) -> None:
        law = row.law
        assert law is not None
        worthy = np.flatnonzero(total + law.scores > least)
        order = worthy[np.argsort(-law.scores[worthy], kind="stable")]
        self.total = total
        self.row = row
        self.children: Iterator[tuple[int, float]] = zip(
            law.processed.ids[order].tolist(), law.scores[order].tolist(), strict=True
        )


class ExactSearch(Strategy):
    """One request's: a branch that goes from prefix to prefix, and the best sequences so far."""

    width = 1
    together = True
    revises = True
    backtracks = True

    def __init__(self, rows: int, n: int) -> None:
        self.want = RowWant(offers=1, law=True)
        self.rows, self.n = rows, n
        self._seen = 0
        self._levels: list[Level] = []
        self._total = 0.0
        self._best: list[tuple[float, Any]] = []
        """Sums and branches of the sequences found, best first."""

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Open the prefix whose row has come, and go to the next one that may be good enough."""
        [row] = frontier
        self._seen += 1
        if self._seen > self.rows:
            raise SearchError(
                f"exact search has looked at {self.rows} rows and is not done: give it more, or a smaller "
                "max_tokens, or rules that leave fewer tokens"
            )
        self._levels.append(Level(self._total, row, self._least))
        branch = row.branch
        while self._levels:
            found = next(self._levels[-1].children, None)
            if found is None or self._levels[-1].total + found[1] <= self._least:
                self._levels.pop()
                continue
            token, score = found
            branch = self._at(branch, len(self._levels) - 1, branches)
            total = self._total = self._levels[-1].total + score
            branches.append(branch, token, self._levels[-1].row.offer(token).figures)
            if not branches.commit(branch):
                return
            self._keep(total, branch, branches)
        if all(branch is not kept for _, kept in self._best):
            branches.drop(branch)

    def _at(self, branch: Any, length: int, branches: Branches) -> Any:
        """A branch at a prefix of this one; what has ended there, and is no result, is let go of."""
        if len(branches.tokens(branch)) == length and all(branch is not kept for _, kept in self._best):
            return branch
        back = branches.fork(branch, length)
        if all(branch is not kept for _, kept in self._best):
            branches.drop(branch)
        return back

    @property
    def _least(self) -> float:
        """What a sequence's sum must be above."""
        return self._best[-1][0] if len(self._best) == self.n else -math.inf

    def _keep(self, total: float, branch: Any, branches: Branches) -> None:
        branches.score(branch, total, total)
        self._best.append((total, branch))
        self._best.sort(key=lambda kept: -kept[0])
        for _, worse in self._best[self.n :]:
            branches.drop(worse)
        del self._best[self.n :]
