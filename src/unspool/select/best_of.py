"""Best of n: the candidate with the highest score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from unspool.conversion import whole
from unspool.errors import ParameterError, shown
from unspool.results import Candidate
from unspool.select.base import Choice, best_first, number_of

ScoreName = Literal["sum_logprob", "mean_logprob", "min_logprob"]

SCORES: dict[str, Callable[[Candidate], float]] = {
    "sum_logprob": lambda candidate: candidate.logprob,
    "mean_logprob": lambda candidate: candidate.mean_logprob,
    "min_logprob": lambda candidate: min(token.logprob for token in candidate.tokens),
}


@dataclass(frozen=True)
class BestOf:
    """Draws ``n`` candidates and returns those with the highest score first; ties go to the earlier sample.

    Log-probabilities are natural and the model's own (``Token.logprob``), before any rule, over the tokens in
    the result: one that ended the text counts only where ``include_stop`` keeps it. A candidate without
    tokens comes last under a score by name.

    n: how many to draw; 1 to 4096.
    score: ``"sum_logprob"`` (favours short texts), ``"mean_logprob"`` (per token), ``"min_logprob"`` (of the
        least probable token), or a function of a ``Candidate`` that returns a number, infinite ones included.
    Raises ``ParameterError`` for what is none of these, and where the function raises or returns NaN.
    """

    n: int
    score: ScoreName | Callable[[Candidate], float] = "sum_logprob"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("n", self.n))
        given: object = self.score
        if not callable(given) and not (isinstance(given, str) and given in SCORES):
            raise ParameterError(
                f"score must be one of {', '.join(SCORES)}, or a function of a Candidate, not {shown(given)}"
            )

    def begin(self) -> BestOf:
        """Itself: it keeps nothing of a request."""
        return self

    def settled(self, finished: Sequence[Candidate | None]) -> int | None:
        """Never early: the last candidate may be the best."""
        return None

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The candidates by descending score."""
        scores = tuple(map(self._score, candidates))
        return Choice(best_first(scores), scores)

    def _score(self, candidate: Candidate) -> float:
        if callable(self.score):
            return number_of("score", self.score, candidate)
        return SCORES[self.score](candidate) if candidate.tokens else -math.inf
