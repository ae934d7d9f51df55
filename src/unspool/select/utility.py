"""How much one text is worth where another was meant.

A utility reads each text once, and compares what it read of two in both directions at once: what the two have
in common does not depend on which is the hypothesis.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from unspool.errors import ParameterError, shown
from unspool.select.base import number_of


class Utility(Protocol):
    """What compares texts."""

    def read(self, text: str) -> Any:
        """Whatever comparisons need of a text."""
        ...

    def both(self, first: Any, second: Any) -> tuple[float, float]:
        """The utility of the first with the second as reference, and of the second with the first."""
        ...


class NGrams(NamedTuple):
    """The n-grams of a text, by order from 1."""

    counts: list[Counter[Any]]
    totals: list[int]
    """How many there are of each order."""
    length: int
    """Words."""


class ChrF:
    """chrF2 of character n-grams up to 6 (Popović 2015), 0 to 100: sacrebleu's ``sentence_chrf``."""

    def __init__(self) -> None:
        try:
            from sacrebleu.metrics import CHRF
            from sacrebleu.metrics.helpers import extract_all_char_ngrams
        except ImportError as error:
            raise _missing("chrf") from error
        self.metric, self.extract = CHRF(), extract_all_char_ngrams

    def read(self, text: str) -> NGrams:
        """Its characters' n-grams, white space left out."""
        counts = self.extract(text, self.metric.char_order)
        return NGrams(counts, [sum(grams.values()) for grams in counts], 0)

    def both(self, first: NGrams, second: NGrams) -> tuple[float, float]:
        """As in ``Utility``."""
        matches = list(map(_matches, first.counts, second.counts))
        return self._score(first, second, matches), self._score(second, first, matches)

    def _score(self, hypothesis: NGrams, reference: NGrams, matches: list[int]) -> float:
        statistics = [
            count
            for counts in zip(hypothesis.totals, reference.totals, matches, strict=True)
            for count in counts
        ]
        return float(self.metric._compute_f_score(statistics))


class Bleu:
    """Sentence BLEU-4 (Papineni 2002), exponentially smoothed, 0 to 100: sacrebleu's ``sentence_bleu``."""

    def __init__(self) -> None:
        try:
            from sacrebleu.metrics import BLEU
        except ImportError as error:
            raise _missing("bleu") from error
        self.metric = BLEU(effective_order=True)

    def read(self, text: str) -> NGrams:
        """Its words' n-grams."""
        words = self.metric.tokenizer(text.rstrip()).split()
        orders = range(1, self.metric.max_ngram_order + 1)
        counts = [Counter(zip(*(words[i:] for i in range(order)), strict=False)) for order in orders]
        return NGrams(counts, [grams.total() for grams in counts], len(words))

    def both(self, first: NGrams, second: NGrams) -> tuple[float, float]:
        """As in ``Utility``."""
        matches = list(map(_matches, first.counts, second.counts))
        return self._score(first, second, matches), self._score(second, first, matches)

    def _score(self, hypothesis: NGrams, reference: NGrams, matches: list[int]) -> float:
        made = self.metric.compute_bleu(
            correct=list(matches),
            total=list(hypothesis.totals),
            sys_len=hypothesis.length,
            ref_len=reference.length,
            smooth_method=self.metric.smooth_method,
            effective_order=True,
        )
        return float(made.score)


class RougeL:
    """ROUGE-L (Lin 2004): the F1 of the longest common subsequence of words, 0 to 1; symmetric.

    Words are runs of letters and digits, whatever their case.
    """

    def read(self, text: str) -> list[str]:
        """Its words."""
        return re.findall(r"[^\W_]+", text.lower())

    def both(self, first: list[str], second: list[str]) -> tuple[float, float]:
        """As in ``Utility``."""
        length = len(first) + len(second)
        score = 2 * longest_common(first, second) / length if length else 0.0
        return score, score


class Own:
    """A caller's own function of hypothesis and reference."""

    def __init__(self, function: Callable[[str, str], float]) -> None:
        self.function = function

    def read(self, text: str) -> str:
        """The text itself."""
        return text

    def both(self, first: str, second: str) -> tuple[float, float]:
        """As in ``Utility``; a text is compared with itself once."""
        value = self._value(first, second)
        return value, value if first == second else self._value(second, first)

    def _value(self, hypothesis: str, reference: str) -> float:
        value = number_of("utility", self.function, hypothesis, reference)
        if math.isinf(value):
            raise ParameterError(f"utility={shown(self.function)} must return finite numbers, not {value}")
        return value


UTILITIES: dict[str, Callable[[], Utility]] = {"chrf": ChrF, "bleu": Bleu, "rouge-l": RougeL}


def longest_common(first: list[str], second: list[str]) -> int:
    """The length of the longest common subsequence, a row of the table in each big integer (Hyyrö 2004).

    Bit i of ``row`` is 0 where taking in word i of ``first`` makes the subsequence one longer.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << i
    every = row = (1 << len(first)) - 1
    for word in second:
        found = row & places.get(word, 0)
        row = (row + found | row - found) & every
    return len(first) - row.bit_count()


def _matches(first: Counter[Any], second: Counter[Any]) -> int:
    """How many n-grams two texts have in common, each as often as both have it."""
    shared = first.keys() & second.keys()
    return sum(map(min, map(first.__getitem__, shared), map(second.__getitem__, shared)))


def _missing(utility: str) -> ParameterError:
    return ParameterError(
        f'utility="{utility}" needs sacrebleu: pip install "unspool[select]"; "rouge-l" needs nothing'
    )
