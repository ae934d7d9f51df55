"""Minimum Bayes risk: the candidate that the others agree with most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Literal

from unspool.conversion import whole
from unspool.errors import ParameterError, shown
from unspool.results import Candidate
from unspool.select.base import Choice, best_first
from unspool.select.utility import UTILITIES, Own, Utility


@dataclass(frozen=True)
class MBR:
    """Draws ``n`` candidates and returns those of the highest expected utility first (Eikema and Aziz 2022).

    A candidate's expected utility is its mean utility with each of the ``n`` samples as reference, itself
    included: they stand for the model's law, each as likely as another. (Where every text is worth as much to
    itself, leaving it out would change no order.) Ties go to the earlier sample. Equal texts are compared
    once, so the work grows with the square of the number of different ones.

    n: how many to draw; 1 to 4096.
    utility: ``"chrf"`` and ``"bleu"`` (sacrebleu's sentence scores, 0 to 100), ``"rouge-l"`` (F1 of the
        longest common subsequence of words, 0 to 1), or a function of hypothesis and reference, two strings,
        that returns a finite number; it is called once for each ordered pair of different texts and once for
        each text with itself.
    Raises ``ParameterError`` for what is none of these, where sacrebleu is needed and missing, and where the
    function raises or returns what is no finite number.
    """

    n: int
    utility: Literal["chrf", "bleu", "rouge-l"] | Callable[[str, str], float] = "chrf"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("n", self.n))
        self._utility()  # whether it is there, before anything is drawn

    def begin(self) -> MBR:
        """Itself: it keeps nothing of a request."""
        return self

    def settled(self, finished: Sequence[Candidate | None]) -> int | None:
        """Never early: every sample is a reference."""
        return None

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """The candidates by descending expected utility."""
        texts = [candidate.text for candidate in candidates]
        expected = expected_utilities(texts, self._utility())
        scores = tuple(expected[text] for text in texts)
        return Choice(best_first(scores), scores)

    def _utility(self) -> Utility:
        if isinstance(self.utility, str) and self.utility in UTILITIES:
            return UTILITIES[self.utility]()
        if callable(self.utility):
            return Own(self.utility)
        raise ParameterError(
            f"utility must be one of {', '.join(UTILITIES)}, or a function of hypothesis and reference, "
            f"not {shown(self.utility)}"
        )


def expected_utilities(texts: Sequence[str], utility: Utility) -> dict[str, float]:
    """Each text's mean utility with every one of ``texts`` as reference, in any order of them the same."""
    counts = Counter(texts)
    read = [utility.read(text) for text in counts]
    table = [[0.0] * len(read) for _ in read]  # [hypothesis][reference]
    for i, first in enumerate(read):
        for j, second in enumerate(read[: i + 1]):
            table[i][j], table[j][i] = utility.both(first, second)
    return {
        text: math.fsum(chain.from_iterable(map(repeat, row, counts.values()))) / len(texts)
        for text, row in zip(counts, table, strict=True)
    }
