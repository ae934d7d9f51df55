"""Beam search whose beams are drawn rather than the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unspool.strategy.base import Branches, Method, RowResult, Strategy, Task
from unspool.strategy.pool import Candidate, EarlyStopping, best_first, conclude, considered, wanted
from unspool.strategy.tree import Tree
from unspool.strategy.width import check, make_pool, results


@dataclass(frozen=True)
class BeamSample(Method):
    """Beams that go on with candidates drawn without replacement, each by the probability of its whole text.

    At each step ``max(2, 1 + E) * width`` candidates of all beams are drawn, with E end tokens: those that
    end finish if they are among the first ``width``, and the first ``width`` of the others live. (With
    ``order="transformers"`` what was drawn is put in order by its probability before, as that library does.)
    Finished texts are kept and ranked as ``Beam`` does. Beams that draw at each step anew forget what they
    drew before: with more than one the results are no exact sample; ``StochasticBeam`` draws one.

    One beam that stops at its first text is sampling. The model's default sampling settings apply.

    Raises ``ParameterError`` for what is out of range.
    """

    width: int
    """How many beams live; 1 to 4096."""
    length_penalty: float = 1.0
    """As of ``Beam``."""
    early_stopping: EarlyStopping = True
    """As of ``Beam``; by default the search ends when ``width`` texts have finished."""
    n: int | None = None
    """As of ``Beam``."""

    uses_model_settings = True

    def __post_init__(self) -> None:
        check(self)

    def begin(self, task: Task) -> Strategy:
        """The search of one request. Raises ``ParameterError`` for more results than beams."""
        return SampledSearch(self, task)


class SampledSearch(Strategy):
    """One request's search.

    The largest of total + score + Gumbel noise are a sample without replacement of all candidates by the
    exponential of their totals, in the order of its drawing (Kool et al. 2019).
    """

    width, together, revises = 1, True, True

    def __init__(self, method: BeamSample, task: Task) -> None:
        self.n = results(method, task)
        self.tree = Tree() if task.traced else None
        self.pool = make_pool(method, task, self.n, self.tree)
        self.draws = considered(method.width, task)
        self.want = wanted(self.draws, task, perturbed=True)
        self.sorts = task.transformers

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Draw candidates of all beams, and let the first go on."""
        if not self.pool.growing:
            self.pool.start(frontier[0].branch)
        drawn = sorted(self.pool.candidates(frontier), key=perturbed, reverse=True)[: self.draws]
        self.pool.grow(best_first(drawn) if self.sorts else drawn, branches)
        if not self.pool.growing:
            conclude([self.pool], self.n, branches)


def perturbed(candidate: Candidate) -> float:
    """What candidates are drawn by."""
    return candidate.live.total + candidate.offer.perturbed
