"""Contrastive search: the probable token whose hidden state is least like those before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unspool.conversion import number_between, whole_between
from unspool.errors import ParameterError
from unspool.strategy.base import Branches, Offer, RowResult, RowWant, Strategy, Task

MOST_CANDIDATES = 256


@dataclass(frozen=True)
class Contrastive:
    """Contrastive search (Su et al. 2022, eq. 5).

    Of the k most probable tokens, the one with the largest
    ``(1 - alpha) p(token) - alpha max_j cos(h(token), h(x_j))``: h are final hidden states, x_j the tokens of
    prompt and output before it. Each token's k candidates are computed in one step, as k branches.

    k: 1 (greedy) to 256. alpha: 0 (greedy) to 1. The paper goes with k from 4 to 8 and alpha 0.6.

    Raises ``ParameterError`` for what is out of range.
    """

    k: int = 4
    alpha: float = 0.6
    uses_model_settings = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_between("k", self.k, 1, MOST_CANDIDATES))
        object.__setattr__(self, "alpha", number_between("alpha", self.alpha, 0.0, 1.0))

    def begin(self, task: Task) -> Strategy:
        """The search of one request. Raises ``ParameterError`` for more than one result."""
        if task.n > 1:
            raise ParameterError(f"contrastive search has one result, not n={task.n}: leave n out")
        return ContrastiveSearch(self)


class ContrastiveSearch(Strategy):
    """One request's: a branch that is final up to its last token, and its twins with the other candidates."""

    width = 1
    together = True
    revises = True

    def __init__(self, method: Contrastive) -> None:
        self.alpha = method.alpha
        self.want = RowWant(offers=method.k, hidden=True)
        self._offers: dict[Any, Offer] = {}
        """What each branch's last token was, while it is a candidate."""
        self._directions: npt.NDArray[np.float32] = np.empty((0, 0), np.float32)
        """[capacity, hidden_size] hidden states of the first tokens, each of length 1."""
        self._known = 0

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Choose among the candidates, and let the chosen one have candidates of its own."""
        chosen = frontier[0]
        if self._offers:
            chosen = self._choose(frontier, branches)
            for row in frontier:
                if row is not chosen:
                    branches.drop(row.branch)
            if branches.commit(chosen.branch):
                return
        twins = [chosen.branch, *(branches.fork(chosen.branch) for _ in chosen.offers[1:])]
        self._offers = dict(zip(twins, chosen.offers, strict=True))
        for twin, offer in self._offers.items():
            branches.append(twin, offer.token, offer.figures)

    def _choose(self, frontier: Sequence[RowResult], branches: Branches) -> RowResult:
        """The best candidate, the more probable of those that tie."""
        self._learn(branches.hidden(frontier[0].branch, self._known)[:-1])
        own = np.stack([direction(branches.hidden(row.branch, self._known)[-1]) for row in frontier])
        likeness = (own @ self._directions[: self._known].T).max(axis=1)
        values = [
            (1 - self.alpha) * math.exp(self._offers[row.branch].score) - self.alpha * float(like)
            for row, like in zip(frontier, likeness, strict=True)
        ]
        return frontier[int(np.argmax(values))]

    def _learn(self, states: npt.NDArray[np.float32]) -> None:
        """Take in the hidden states, [n, hidden_size], of the tokens that have become final."""
        end = self._known + len(states)
        if end > len(self._directions):
            larger = np.empty((2 * end, states.shape[1]), np.float32)
            if self._known:
                larger[: self._known] = self._directions[: self._known]
            self._directions = larger
        for at, state in enumerate(states, self._known):
            self._directions[at] = direction(state)
        self._known = end


def direction(state: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A hidden state, made of length 1."""
    return state / max(np.float32(np.sqrt(np.square(state, dtype=np.float64).sum())), np.float32(1e-30))
