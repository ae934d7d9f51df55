"""Beam search for texts that hold given phrases: dynamic beam allocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from unspool.errors import ParameterError, SearchError
from unspool.strategy.base import Branches, RowResult, Strategy, Task
from unspool.strategy.phrases import MOST_TOKENS, Ids, Phrases
from unspool.strategy.pool import Candidate, best_first, conclude, offered, wanted
from unspool.strategy.tree import Tree
from unspool.strategy.width import make_pool, results


class ForcedSearch(Strategy):
    """One request's beam search with ``force_words`` (Post and Vilar 2018).

    Each beam is offered the tokens that go on with a phrase, too. Candidates are sorted into banks by how
    many tokens of phrases they have, and the banks choose in turn, from the fullest on: each its best, then
    each its second, so that no bank crowds out another and a place that one does not need is shared by the
    rest. A text may end when it holds all phrases; one that cannot come to hold them in ``max_tokens`` is
    left out.
    """

    width, together, revises = 1, True, True

    def __init__(self, method: Any, task: Task) -> None:
        self.n = results(method, task)
        self.task = task
        self.phrases = Phrases(checked(method.sets, task))
        self.tree = Tree() if task.traced else None
        self.pool = make_pool(method, task, self.n, self.tree, self.phrases.start)
        self.want = wanted(offered(method.width, task), task, law=True)

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Let the best candidates of each bank go on. Raises ``SearchError`` where no text came of them."""
        if not self.pool.growing:
            self.pool.start(frontier[0].branch)
        rows = [self._with_phrases(row) for row in frontier]
        candidates = [self._looked_at(candidate) for candidate in self.pool.candidates(rows)]
        self.pool.grow(self._by_banks([each for each in candidates if self._possible(each)]), branches)
        if not self.pool.growing:
            if not self.pool.hypotheses.kept:
                raise SearchError(
                    "no text was found that holds all force_words: the rules may ban a token of them, or "
                    f"max_tokens={self.task.max_tokens} and {self.pool.width} beams be too few"
                )
            conclude([self.pool], self.n, branches)

    def _with_phrases(self, row: RowResult) -> RowResult:
        """The row with offers of what goes on with a phrase, as far as its law has it."""
        assert row.law is not None
        offered = {offer.token for offer in row.offers}
        tokens = self.phrases.next_tokens(self.pool.live[row.branch].progress) - offered
        possible = np.intersect1d(sorted(tokens), row.law.processed.ids).tolist()
        return row._replace(offers=(*row.offers, *map(row.offer, possible)))

    def _looked_at(self, candidate: Candidate) -> Candidate:
        """The candidate with how far it is in the phrases."""
        state = self.phrases.after(candidate.live.progress, candidate.offer.token)
        return candidate._replace(progress=state, complete=self.phrases.complete(state))

    def _possible(self, candidate: Candidate) -> bool:
        """Whether it may come to hold all phrases."""
        if candidate.complete:
            return True
        left = self.task.max_tokens - candidate.live.length - 1
        return (
            candidate.offer.token not in self.task.end_ids
            and self.phrases.missing(candidate.progress) <= left
        )

    def _by_banks(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """In the order in which the banks choose."""
        turns: Counter[int] = Counter()
        ordered = []
        for candidate in best_first(candidates):
            bank = self.phrases.fulfilled(candidate.progress)
            ordered.append((turns[bank], -bank, candidate))
            turns[bank] += 1
        return [candidate for *_, candidate in sorted(ordered, key=lambda each: each[:2])]


def checked(sets: Sequence[Sequence[Any]], task: Task) -> tuple[tuple[Ids, ...], ...]:
    """The phrases, if a text of this task can hold them. Raises ``ParameterError``."""
    if task.learns:
        raise ParameterError(
            "force_words does not go with rules that learn from what is drawn (mirostat, adaptive-p): of a "
            "forced token they would learn nothing"
        )
    everything = [phrase for phrases in sets for phrase in phrases]
    if any(isinstance(phrase, str) for phrase in everything):
        raise ParameterError("force_words holds strings: only a model's tokenizer makes token ids of them")
    if sum(map(len, everything)) > MOST_TOKENS:
        raise ParameterError(f"force_words has more than {MOST_TOKENS} tokens in all")
    for phrase in everything:
        outside = [token for token in phrase if token >= task.vocab_size]
        if outside:
            raise ParameterError(
                f"force_words has token id {outside[0]}; the model's are 0 to {task.vocab_size - 1}"
            )
        if ends := task.end_ids.intersection(phrase):
            raise ParameterError(f"force_words has token id {min(ends)}, which ends a text")
    for phrases in sets:
        if min(map(len, phrases)) > task.max_tokens:
            raise ParameterError(
                f"force_words has a phrase of {min(map(len, phrases))} tokens; max_tokens={task.max_tokens}"
            )
    return tuple(map(tuple, sets))
