"""What a selection is: finished candidates come in, and it says which are best."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from unspool.conversion import number
from unspool.errors import ParameterError, shown
from unspool.results import Candidate


@dataclass(frozen=True, slots=True)
class Tally:
    """What one answer got in a vote."""

    answer: Hashable
    votes: int
    mean_logprob: float
    """The mean of its voters' ``mean_logprob``; minus infinity where one of them has no tokens."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which candidates are best, and why. Candidates are named by their place in sample order, from 0."""

    order: tuple[int, ...]
    """All that were considered, best first."""
    scores: tuple[float, ...]
    """[considered] what each is ranked by, in sample order: the score, the expected utility, or the votes of
    its answer."""
    tally: tuple[Tally, ...] = ()
    """A vote's answers, the chosen one first; empty where no candidate has an answer, and without a vote."""

    @property
    def best(self) -> int:
        """The chosen candidate."""
        return self.order[0]

    @property
    def considered(self) -> int:
        """How many candidates it was made from: fewer than ``n`` where a vote was settled before."""
        return len(self.order)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it; answers that are no text or number as their ``repr``."""
        tally = [
            {
                "answer": each.answer if isinstance(each.answer, (str, int, float)) else repr(each.answer),
                "votes": each.votes,
                "mean_logprob": each.mean_logprob,
            }
            for each in self.tally
        ]
        return {"order": list(self.order), "scores": list(self.scores), "tally": tally}

    @property
    def answer(self) -> Hashable:
        """The answer that won a vote; ``None`` where there is none."""
        return self.tally[0].answer if self.tally else None


class Chooser(Protocol):
    """A selection at work on one request's candidates, in sample order whatever finished when."""

    def settled(self, finished: Sequence[Candidate | None]) -> int | None:
        """The smallest m such that candidates 0 to m - 1 decide the choice whatever the rest says.

        finished: [n] the candidates, ``None`` in place of those that have not finished. A candidate that was
            seen once is not looked at again.
        Returns ``None`` where they do not decide it yet, which is so too once all have finished for a choice
        that needs all of them: only a vote ends early.
        """
        ...

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The choice among candidates 0 to m - 1, all finished: at least one, and all that were looked at."""
        ...


class Selection(Protocol):
    """How a request's candidates are chosen among: settings, checked where they are said."""

    @property
    def n(self) -> int:
        """How many candidates it wants."""
        ...

    def begin(self) -> Chooser:
        """What is to choose among the candidates of one request."""
        ...


def best_first(scores: Sequence[float]) -> tuple[int, ...]:
    """Places by descending score, those that tie in order."""
    return tuple(sorted(range(len(scores)), key=lambda place: -scores[place]))


def answer_of(name: str, function: Callable[..., Any], *arguments: object) -> Any:
    """What a caller's own function returns. Raises ``ParameterError`` where it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        raise ParameterError(
            f"{name}={shown(function)} raised {type(error).__name__}: {error}, given {_listed(arguments)}"
        ) from error


def number_of(name: str, function: Callable[..., Any], *arguments: object) -> float:
    """The number that a caller's own function returns. Raises ``ParameterError`` for NaN and what is none."""
    value = answer_of(name, function, *arguments)
    made = math.nan
    with suppress(ParameterError):
        made = number(name, value)
    if math.isnan(made):
        raise ParameterError(
            f"{name}={shown(function)} must return a number, not {shown(value)}, given {_listed(arguments)}"
        )
    return made


def _listed(arguments: Sequence[object]) -> str:
    """A function's arguments as an error shows them: of a candidate its text."""
    return ", ".join(shown(each.text if isinstance(each, Candidate) else each) for each in arguments)
