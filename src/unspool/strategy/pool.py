"""The beams of one search: candidates come in, the best go on, those that end are kept for later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from unspool.strategy.base import Branches, Offer, RowResult, RowWant, Task
from unspool.strategy.hypotheses import Hypotheses, Hypothesis, Key, Scoring
from unspool.strategy.tree import ROOT, Tree

EarlyStopping = Literal[True, False, "never"]


class Live(NamedTuple):
    """A beam: a text that goes on."""

    total: float
    """The sum of its tokens' scores."""
    length: int
    node: int
    """Its last token in the search tree."""
    progress: Any = None
    """How far it is in the phrases that it must hold."""


class Candidate(NamedTuple):
    """A beam and a token that it may go on with."""

    branch: Any
    live: Live
    offer: Offer
    total: float
    """The sum of scores, this token's included."""
    progress: Any = None
    complete: bool = True
    """Whether it may be a result, should a stop string end it here; with an end token it must be."""


class Pool:
    """Up to ``width`` beams, which grow by a token each at a time, and the hypotheses that they left.

    Of the best ``max(2, 1 + E) * width`` candidates, with E end tokens, those that end finish if they are
    among the first ``width``, and are dropped if not; the first ``width`` of the others live. An end is an
    end token, a stop string, or ``max_tokens``.

    capacity: how many hypotheses are kept.
    promise: the best key that a beam of this total and length is hoped to reach; the search is over when
        ``capacity`` hypotheses are kept and the best beam promises no better than the worst of them. None: it
        is over when they are kept.
    """

    def __init__(
        self,
        width: int,
        capacity: int,
        task: Task,
        scoring: Scoring,
        promise: Callable[[float, int], Key] | None,
        tree: Tree | None,
        progress: Any = None,
    ) -> None:
        self.width = width
        self.task, self.scoring, self.tree = task, scoring, tree
        self.hypotheses = Hypotheses(capacity)
        self.live: dict[Any, Live] = {}
        self.chosen: list[int] = []
        """The tokens that the last step chose, for beams to go on with or to finish with."""
        self._considered = considered(width, task)
        self._promise = promise
        self._root = Live(0.0, 0, ROOT, progress)
        self._losers: list[Any] = []

    @property
    def growing(self) -> bool:
        """Whether the search goes on."""
        return bool(self.live)

    def start(self, branch: Any) -> None:
        """Begin with this branch, which holds the prompt."""
        self.live[branch] = self._root

    def candidates(self, rows: Sequence[RowResult]) -> list[Candidate]:
        """What the beams are offered: in the order of the beams, the best first, and then as they came."""
        offers = {row.branch: row.offers for row in rows}
        return [
            Candidate(branch, live, offer, live.total + offer.score)
            for branch, live in self.live.items()
            for offer in offers[branch]
        ]

    def grow(self, ordered: Sequence[Candidate], branches: Branches) -> None:
        """Let the beams go on with the first of these candidates, and finish those that end."""
        before, self.live, self.chosen = self.live, {}, []
        ordered = ordered[: self._considered]
        nodes = self._consider(ordered)
        if ordered and ordered[0].live.length + 1 == self.task.max_tokens:
            ordered = ordered[: self.width]  # all of them end here
        queue = deque(enumerate(ordered))
        used: set[Any] = set()
        while batch := self._next(queue):
            taken = [candidate for _, candidate in batch]
            for branch, (rank, candidate) in zip(extend(taken, used, branches), batch, strict=True):
                self._settle(branch, rank, candidate, nodes[rank], branches)
        if not self._promising:
            self._losers += self.live
            self.live = {}
        for branch in [*(branch for branch in before if branch not in used), *self._losers]:
            branches.drop(branch)
        self._losers = []

    def _consider(self, ordered: Sequence[Candidate]) -> list[int]:
        """The candidates' nodes in the tree."""
        if self.tree is None:
            return [ROOT] * len(ordered)
        return [
            self.tree.consider(
                each.live.node,
                each.offer.token,
                each.total,
                self.scoring.score(each.total, each.live.length + 1),
            )
            for each in ordered
        ]

    def _next(self, queue: deque[tuple[int, Candidate]]) -> list[tuple[int, Candidate]]:
        """The next candidates, with their ranks, until there are enough that do not end with an end token."""
        batch: list[tuple[int, Candidate]] = []
        room = self.width - len(self.live)
        while queue and room:
            rank, candidate = queue.popleft()
            ends = candidate.offer.token in self.task.end_ids
            if not ends or rank < self.width:
                self.chosen.append(candidate.offer.token)
                room -= not ends
                if not ends or self._takes(candidate):
                    batch.append((rank, candidate))
        return batch

    def _takes(self, candidate: Candidate) -> bool:
        """Whether the candidate would be kept, did it end."""
        key = self.scoring.key(candidate.total, candidate.live.length + 1)
        return self.hypotheses.takes(key)

    def _settle(self, branch: Any, rank: int, candidate: Candidate, node: int, branches: Branches) -> None:
        """Make a beam's new token final: it lives on, finishes, or is dropped."""
        total, length = candidate.total, candidate.live.length + 1
        ended = branches.commit(branch)
        if ended and (rank >= self.width or not candidate.complete):
            self._losers.append(branch)
            return
        if ended:
            branches.score(branch, self.scoring.score(total, length), total)
            key = self.scoring.key(total, length)
            beaten = self.hypotheses.add(Hypothesis(branch, total, length, key, node))
            self._losers += [] if beaten is None else [beaten.branch]
        else:
            self.live[branch] = Live(total, length, node, candidate.progress)
        if self.tree is not None:
            self.tree.settle(node, "finished" if ended else "kept")

    @property
    def _promising(self) -> bool:
        """Whether a beam may still come to something."""
        if not self.hypotheses.full or not self.live:
            return True
        if self._promise is None:
            return False
        best = max(self.live.values(), key=lambda live: live.total)
        return self._promise(best.total, best.length) > self.hypotheses.kept[-1].key


def best_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By descending total; of those that tie, that of the better beam, then the lower token."""
    return sorted(candidates, key=lambda candidate: -candidate.total)


def extend(candidates: Sequence[Candidate], used: set[Any], branches: Branches) -> list[Any]:
    """The branches that go on with each candidate: the beam's own for its first, forks of it for others.

    used: branches that went on with another token before; those that do now are added.
    """
    before = frozenset(used)
    places = []
    for candidate in candidates:
        branch = candidate.branch
        if branch not in used:
            places.append(branch)
        elif branch in before:
            places.append(branches.fork(branch, candidate.live.length))
        else:
            places.append(branches.fork(branch))
        used.add(branch)
    for place, candidate in zip(places, candidates, strict=True):
        branches.append(place, candidate.offer.token, candidate.offer.figures)
    return places


def conclude(pools: Sequence[Pool], n: int, branches: Branches) -> None:
    """Leave the best n of all hypotheses, without repeats; those of one pool never repeat."""
    ranked = sorted(
        (hypothesis for pool in pools for hypothesis in pool.hypotheses.kept),
        key=lambda hypothesis: hypothesis.key,
        reverse=True,
    )
    results: dict[tuple[int, ...] | int, Hypothesis] = {}
    for at, hypothesis in enumerate(ranked):
        text = at if len(pools) == 1 else tuple(branches.tokens(hypothesis.branch))
        if len(results) < n and text not in results:
            results[text] = hypothesis
        else:
            branches.drop(hypothesis.branch)
    if pools[0].tree is not None:
        pools[0].tree.results = [hypothesis.node for hypothesis in results.values()]


def promise(stopping: EarlyStopping, scoring: Scoring, task: Task) -> Callable[[float, int], Key] | None:
    """What the best beam is hoped to reach, by the usual names of ``early_stopping``: see ``Beam``."""
    if stopping is True:
        return None
    if stopping is False:
        return scoring.key
    if not task.transformers:
        return scoring.bound
    if scoring.length_penalty > 0:
        return lambda total, _: scoring.key(total, task.max_tokens)
    return scoring.key


def considered(width: int, task: Task) -> int:
    """How many candidates of all beams a step looks at: of so many, ``width`` end with no end token."""
    return max(2, 1 + len(task.end_ids)) * width


def offered(width: int, task: Task) -> int:
    """How many candidates of one beam may come to be looked at.

    End tokens apart, no more than ``width``; but each that a stop string ends makes place for another.
    """
    return considered(width, task) if task.stops else width + len(task.end_ids)


def wanted(offers: int, task: Task, *, perturbed: bool = False, law: bool = False) -> RowWant:
    """Offers of each row, or all where the vocabulary has fewer, scored as the task's order has it."""
    return RowWant(
        offers=min(offers, task.vocab_size), perturbed=perturbed, normalized=not task.transformers, law=law
    )
