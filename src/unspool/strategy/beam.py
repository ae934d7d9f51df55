"""Beam search: of all ways to go on, those with the best sums of log-probabilities live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unspool.strategy.base import Branches, Method, RowResult, Strategy, Task
from unspool.strategy.forced import ForcedSearch
from unspool.strategy.phrases import Phrase, as_sets, with_token_ids
from unspool.strategy.pool import EarlyStopping, best_first, conclude, offered, wanted
from unspool.strategy.tree import Tree
from unspool.strategy.width import check, make_pool, results


@dataclass(frozen=True)
class Beam(Method):
    """Looks for the texts with the best score = sum of log-probabilities / length**length_penalty.

    The length counts generated tokens, the one that ends the text included. Log-probabilities are those of
    the law that the request's rules make (``Candidate.total`` is their sum; ``Candidate.logprob`` is the
    model's own); the model's default sampling settings do not apply. With ``order="transformers"`` it does as
    that library's beam search does.

    Raises ``ParameterError`` for what is out of range.
    """

    width: int
    """How many beams live; 1 (greedy) to 4096."""
    length_penalty: float = 1.0
    """-1000 to 1000. 1 ranks by the mean, 0 by the sum, less favours short texts. Texts are compared by it
    when they end; beams of one length need no penalty."""
    early_stopping: EarlyStopping = False
    """When to end before ``max_tokens``, once ``width`` texts have finished. ``True``: at once. ``False``:
    when the best beam would score no better than the worst of them, if it ended now: a guess where the
    penalty is above 0, and certain where it is not. ``"never"``: when no beam can come to be a result any
    more, by what its score is at most (which, with n results, needs n finished texts alone)."""
    n: int | None = None
    """How many results to return, best first; 1 to ``width``. ``None``: as the request says."""

    force_words: Iterable[Any] = ()
    """Phrases that every result holds: strings or lists of token ids, or lists of them of which one is
    enough. A string counts as it is encoded where a text begins with it, or after a space. Kept as a tuple of
    tuples."""

    uses_model_settings = False

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "force_words", as_sets("force_words", self.force_words))

    def with_token_ids(self, encode: Callable[[str], Iterable[tuple[int, ...]]]) -> Beam:
        """The same with the phrases as token ids: ``encode`` gives the ways to spell a string.

        Raises ``ParameterError`` for a string that is no text.
        """
        return replace(self, force_words=with_token_ids("force_words", self.sets, encode))

    @property
    def sets(self) -> tuple[tuple[Phrase, ...], ...]:
        """The phrases, as lists of which one is enough."""
        return tuple(self.force_words)

    def begin(self, task: Task) -> Strategy:
        """The search of one request.

        Raises ``ParameterError`` for more results than beams, and for phrases that no text can hold.
        """
        return ForcedSearch(self, task) if self.force_words else BeamSearch(self, task)


class BeamSearch(Strategy):
    """One request's beam search."""

    width, together, revises = 1, True, True

    def __init__(self, method: Beam, task: Task) -> None:
        self.n = results(method, task)
        self.tree = Tree() if task.traced else None
        self.pool = make_pool(method, task, self.n, self.tree)
        self.want = wanted(offered(method.width, task), task)

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Let the best candidates of all beams go on."""
        if not self.pool.growing:
            self.pool.start(frontier[0].branch)
        self.pool.grow(best_first(self.pool.candidates(frontier)), branches)
        if not self.pool.growing:
            conclude([self.pool], self.n, branches)
