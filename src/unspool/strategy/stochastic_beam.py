"""Stochastic beam search: samples of whole sequences, none of them twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unspool.conversion import whole_between
from unspool.errors import ParameterError
from unspool.strategy.base import Branches, Offer, RowResult, RowWant, Strategy, Task

MOST_WIDTH = 256


@dataclass(frozen=True)
class StochasticBeam:
    """Sampling ``width`` sequences without replacement (Kool, van Hoof and Welling 2019).

    Every sequence has a Gumbel variable with its log-probability as location; the results are the sequences
    with the largest ones, found from the top down: a beam search over perturbed log-probabilities, in which a
    prefix's is the largest of those of its continuations. ``Candidate.score`` is the perturbed
    log-probability, best first, and ``Candidate.total`` the log-probability under the rules' laws.

    With ``n`` given, the first n of the ``width`` sequences are returned: a sample of n without replacement.

    width: 1 to 256. Raises ``ParameterError`` for what is out of range.
    """

    width: int = 4
    uses_model_settings = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole_between("width", self.width, 1, MOST_WIDTH))

    def begin(self, task: Task) -> Strategy:
        """The search of one request. Raises ``ParameterError`` for more results than it is wide."""
        if task.n > self.width:
            raise ParameterError(f"n={task.n} results do not come of a stochastic beam of width {self.width}")
        return StochasticBeamSearch(self.width, self.width if task.n == 1 else task.n)


class Perturbed(NamedTuple):
    """A sequence's perturbed log-probability and its log-probability."""

    perturbed: float
    total: float


class Child(NamedTuple):
    """A candidate for a place in the beam: a branch that has ended, or one that would go on with an offer."""

    value: Perturbed
    branch: Any
    offer: Offer | None


class StochasticBeamSearch(Strategy):
    """One request's: the ``width`` branches with the largest perturbed log-probabilities, ended or not."""

    together = True
    revises = True

    def __init__(self, size: int, n: int) -> None:
        self.width = 1
        self.size, self.n = size, n
        self.want = RowWant(offers=size, perturbed=True)
        self._growing: dict[Any, Perturbed] = {}
        self._ended: dict[Any, Perturbed] = {}

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Keep the best of all children and of what has ended."""
        children = [Child(value, branch, None) for branch, value in self._ended.items()]
        for row in frontier:
            # of the root nothing is known but that it is its children's largest
            root = Perturbed(largest_of(row), 0.0)
            children += children_of(row, self._growing.get(row.branch, root))
        children.sort(key=lambda child: -child.value.perturbed)
        kept, rest = children[: self.size], children[self.size :]
        for child in rest:
            if child.offer is None:
                branches.drop(child.branch)
                del self._ended[child.branch]
        self._growing = {}
        for row in frontier:
            own = [child for child in kept if child.branch == row.branch and child.offer is not None]
            self._go_on(row.branch, own, branches)
        if not self._growing:
            for child in sorted(self._ended, key=lambda branch: -self._ended[branch].perturbed)[self.n :]:
                branches.drop(child)

    def _go_on(self, branch: Any, children: Sequence[Child], branches: Branches) -> None:
        """Let a branch go on as its children; without any it is dropped."""
        if not children:
            branches.drop(branch)
            return
        twins = [branch, *(branches.fork(branch) for _ in children[1:])]
        for twin, child in zip(twins, children, strict=True):
            assert child.offer is not None
            branches.append(twin, child.offer.token, child.offer.figures)
            branches.score(twin, *child.value)
            ended = branches.commit(twin)
            (self._ended if ended else self._growing)[twin] = child.value


def children_of(row: RowResult, parent: Perturbed) -> list[Child]:
    """A branch's offers, with perturbed log-probabilities whose largest is the parent's own.

    With G = the parent's, Z = the largest of the children's own g: -log(exp(-G) - exp(-Z) + exp(-g)), in the
    stable form of the paper's appendix B.3. It keeps the order, so that the best offers are enough.
    """
    largest = largest_of(row)  # not the first's: a race goes by masses, which round in thin tails
    made = []
    for offer in row.offers:
        if not math.isfinite(offer.perturbed):
            continue
        v = (parent.perturbed - parent.total) - offer.perturbed + log1mexp(offer.perturbed - largest)
        value = parent.perturbed - max(0.0, v) - math.log1p(math.exp(-abs(v)))
        made.append(Child(Perturbed(value, parent.total + offer.score), row.branch, offer))
    return made


def largest_of(row: RowResult) -> float:
    """The largest perturbed log-probability among a row's offers."""
    return max(offer.perturbed for offer in row.offers)


def log1mexp(x: float) -> float:
    """log(1 - exp(x)) of x <= 0; -inf of 0."""
    if x == 0:
        return -math.inf
    return math.log(-math.expm1(x)) if x > -math.log(2) else math.log1p(-math.exp(x))
