"""Votes: the answer that most candidates come to."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from unspool.conversion import flag, whole
from unspool.errors import ParameterError, shown
from unspool.results import Candidate
from unspool.select.base import Choice, Tally, answer_of, best_first

NUMBER = re.compile(
    r"(?P<sign>[+-]?\$?|\$[+-])(?P<whole>[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}|[0-9]*)(?:\.(?P<part>[0-9]*))?"
)
"""A number as people write it: a dollar sign, commas between groups of digits, a decimal point."""


@dataclass(frozen=True)
class Vote:
    """Draws ``n`` candidates and returns one of the answer that most of them give (Wang et al. 2022).

    Each candidate has one vote, for the answer that ``extract`` finds in its text; where it finds none the
    candidate does not vote. Among answers with as many votes the one with the highest mean of its voters'
    ``mean_logprob`` (the model's own law) wins, then the one that came first in sample order. Of the winning
    answer's candidates the first in sample order is chosen. Those without an answer come last, by
    ``mean_logprob``; where no candidate has one the best of them is chosen, and the tally is empty.

    The vote ends as soon as the candidates in sample order decide the answer whatever the rest says; who
    finishes first never matters.

    n: how many to draw; 1 to 4096.
    extract: a regular expression, of which the **last** match in the text is the answer: the first of its
        groups that took part, or all of it if it has no groups, without white space around it; an empty one
        is none. Or a function of the text that returns anything hashable, or ``None`` for no answer.
    numbers: whether a regular expression's answers that are numbers count as such: ``"1,200"``, ``"$1200"``,
        ``"1200."`` and ``"1200.00"`` are one answer, ``"1200"``.
    Raises ``ParameterError`` for what is none of these, and where the function raises or returns what cannot
    be hashed.
    """

    n: int
    extract: str | Callable[[str], Hashable | None]
    numbers: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("n", self.n))
        flag("numbers", self.numbers)
        if isinstance(self.extract, str):
            try:
                re.compile(self.extract)
            except (re.error, RecursionError, OverflowError) as error:
                raise ParameterError(
                    f"extract={shown(self.extract)} is no regular expression: {error}"
                ) from error
        elif not callable(self.extract):
            raise ParameterError(
                "extract must be a regular expression in a string, or a function of a text, "
                f"not {shown(self.extract)}"
            )

    def begin(self) -> Count:
        """The count of one request's votes."""
        return Count(self)

    def answer(self, text: str) -> Hashable | None:
        """The answer in a text; ``None`` where there is none."""
        if isinstance(self.extract, str):
            return self._matched(self.extract, text)
        answer: Hashable | None = answer_of("extract", self.extract, text)
        try:
            hash(answer)
        except Exception as error:
            raise ParameterError(
                f"extract={shown(self.extract)} must return something hashable, not {shown(answer)}"
            ) from error
        return answer

    def _matched(self, pattern: str, text: str) -> str | None:
        """The last match of a regular expression."""
        last = deque(re.finditer(pattern, text), maxlen=1)
        if not last:
            return None
        groups = last[0].groups() or (last[0].group(),)
        answer = next((group for group in groups if group is not None), "").strip()
        return (number_text(answer) if self.numbers else answer) or None


class Count:
    """The votes of one request, read in sample order, each candidate once."""

    def __init__(self, vote: Vote) -> None:
        self.vote = vote
        self.answers: list[Hashable | None] = []
        """Of the candidates read so far."""
        self.means: list[float] = []
        """Their mean log-probabilities: at most 0, minus infinity without tokens."""
        self.voters: dict[Hashable, list[int]] = {}
        """Who gave each answer, in the order in which answers came up."""
        self.most = 0
        """The most votes that any of them has."""
        self.decided: int | None = None

    def settled(self, finished: Sequence[Candidate | None]) -> int | None:
        """The smallest m such that candidates 0 to m - 1 decide the answer, ties included."""
        while self.decided is None:
            read = len(self.answers)
            if self._certain(self.vote.n - read):
                self.decided = read
            elif read < len(finished) and (candidate := finished[read]) is not None:
                self._read(candidate)
            else:
                break
        return self.decided

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The candidates by their answers' votes. Those read before are taken to be the same."""
        for candidate in candidates[len(self.answers) :]:
            self._read(candidate)
        ranked = sorted(self.voters.items(), key=lambda item: (-len(item[1]), -self._mean(item[1])))
        silent = [place for place, answer in enumerate(self.answers) if answer is None]
        by_mean = best_first([self.means[place] for place in silent])
        return Choice(
            order=(*(place for _, voters in ranked for place in voters), *(silent[i] for i in by_mean)),
            scores=tuple(
                0.0 if answer is None else float(len(self.voters[answer])) for answer in self.answers
            ),
            tally=tuple(Tally(answer, len(voters), self._mean(voters)) for answer, voters in ranked),
        )

    def _read(self, candidate: Candidate) -> None:
        answer = self.vote.answer(candidate.text)
        if answer is not None:
            voters = self.voters.setdefault(answer, [])
            voters.append(len(self.answers))
            self.most = max(self.most, len(voters))
        self.answers.append(answer)
        self.means.append(min(candidate.mean_logprob, 0.0) if candidate.tokens else -math.inf)

    def _mean(self, voters: Sequence[int], others: int = 0) -> float:
        """Mean log-probability of voters, and of others who are certain of every token."""
        return math.fsum(self.means[place] for place in voters) / (len(voters) + others)

    def _certain(self, rest: int) -> bool:
        """Whether the leader wins whatever ``rest`` more candidates say.

        The worst that they can do is to all give one other answer, each with a mean log-probability of 0, the
        highest there is. An answer that nobody gave yet is such an other too.
        """
        if rest <= 0:
            return True
        if rest > self.most:
            return False
        leader = max(self.voters.values(), key=len)
        rivals = (voters for voters in (*self.voters.values(), []) if voters is not leader)
        return all(self._beats(leader, rival, rest) for rival in rivals)

    def _beats(self, leader: list[int], rival: list[int], rest: int) -> bool:
        """Whether a leader beats a rival who gets all the rest."""
        short = len(leader) - len(rival) - rest
        if short != 0:
            return short > 0
        mean, other = self._mean(leader), self._mean(rival, rest)
        return mean > other or (mean == other and (not rival or leader[0] < rival[0]))


def number_text(text: str) -> str:
    """A number in its shortest decimal form, so that equal ones have equal texts; other texts as they are."""
    found = NUMBER.fullmatch(text.rstrip(".,"))
    if found is None or not (found["whole"] or found["part"]):
        return text
    whole_part = found["whole"].replace(",", "").lstrip("0") or "0"
    part = (found["part"] or "").rstrip("0")
    number = f"{whole_part}.{part}" if part else whole_part
    return f"-{number}" if "-" in found["sign"] and number != "0" else number
