"""Diverse beam search: groups of beams, each of which avoids what the groups before it have just chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from unspool.errors import ParameterError
from unspool.strategy.base import Branches, Method, RowResult, Strategy, Task
from unspool.strategy.pool import EarlyStopping, Pool, conclude, offered, wanted
from unspool.strategy.tree import Tree
from unspool.strategy.width import check, make_pool, real, results, whole


@dataclass(frozen=True)
class DiverseBeam(Method):
    """Beam search in groups that differ (Vijayakumar et al. 2016, with the Hamming diversity).

    At each step the groups choose in order: a candidate counts ``diversity_penalty`` less for each time that
    a group before has chosen its token at this step. The penalty steers the choice alone and is part of no
    score. Each group keeps its own finished texts and stops by itself; the best of all are returned, those
    that groups share once: there may be fewer than ``n``. One group is ``Beam``.

    Raises ``ParameterError`` for what is out of range.
    """

    width: int
    """How many beams live in all groups together; 1 to 4096."""
    groups: int
    """How many groups; a divisor of ``width``."""
    diversity_penalty: float = 0.5
    """In nats; 0 (all groups alike) to 1000. The paper finds 0.2 to 0.8 good."""
    length_penalty: float = 1.0
    """As of ``Beam``."""
    early_stopping: EarlyStopping = False
    """As of ``Beam``, for each group."""
    n: int | None = None
    """As of ``Beam``."""

    uses_model_settings = False

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "groups", whole("groups", self.groups))
        penalty = real("diversity_penalty", self.diversity_penalty, 0, 1000)
        object.__setattr__(self, "diversity_penalty", penalty)
        if self.width % self.groups:
            raise ParameterError(
                f"width={self.width} beams cannot be shared evenly by groups={self.groups}: "
                "give a multiple of it"
            )

    def begin(self, task: Task) -> Strategy:
        """The search of one request. Raises ``ParameterError`` for more results than beams."""
        return DiverseSearch(self, task)


class DiverseSearch(Strategy):
    """One request's diverse beam search; each group begins with a branch of its own."""

    together, revises = True, True

    def __init__(self, method: DiverseBeam, task: Task) -> None:
        self.n = results(method, task)
        self.width = method.groups
        self.penalty = method.diversity_penalty
        self.tree = Tree() if task.traced else None
        self.pools = [
            make_pool(method, task, self.n, self.tree, groups=method.groups) for _ in range(method.groups)
        ]
        # Those that groups before it chose may all come last of what a group is offered.
        share = method.width // method.groups
        self.want = wanted(method.width - share + offered(share, task), task)
        self._begun = False

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Let the groups choose, one after the other."""
        if not self._begun:
            self._begun = True
            for pool, row in zip(self.pools, frontier, strict=True):
                pool.start(row.branch)
        chosen: Counter[int] = Counter()
        for pool in self.pools:
            if pool.growing:
                self._grow(pool, frontier, chosen, branches)
                chosen.update(pool.chosen)
        if not any(pool.growing for pool in self.pools):
            conclude(self.pools, self.n, branches)

    def _grow(
        self, pool: Pool, frontier: Sequence[RowResult], chosen: Counter[int], branches: Branches
    ) -> None:
        """Let a group choose, with what the groups before it chose."""
        candidates = pool.candidates([row for row in frontier if row.branch in pool.live])
        candidates.sort(key=lambda each: self.penalty * chosen[each.offer.token] - each.total)
        pool.grow(candidates, branches)
