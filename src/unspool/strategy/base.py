"""What a strategy is: rows come in, and branches grow, fork and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from unspool.results import FinishReason, RuleTrace
from unspool.sampling.distribution import Distribution

if TYPE_CHECKING:
    from unspool.strategy.tree import Tree

Ranked = tuple[tuple[int, float, float], ...]
"""Tokens, best first, with their log-probabilities before and after the rules."""


class Figures(NamedTuple):
    """What the model, and the rules, thought of a token; log-probabilities are natural."""

    logprob: float
    """Under the model's own law."""
    processed_logprob: float
    """Under the law that it was drawn from."""
    entropy: float
    """Of the model's own law, in nats."""
    surprise: float
    """-log p under the law that reached the rule that learns from it; 0 where none does."""
    rank: int
    """In the model's own law, from 0."""
    kept: int
    """How many candidates the rules kept."""
    best: Ranked = ()
    """The most probable tokens of the model's own law."""
    best_processed: Ranked = ()
    """The most probable tokens of the law that it was drawn from."""
    trace: tuple[RuleTrace, ...] = ()
    """What each rule did, if that was asked for."""


class Offer(NamedTuple):
    """A candidate for a branch's next token."""

    token: int
    score: float
    """Its log-probability under the law that the rules made. In the order of Transformers: what the rules
    made of its log-probability, which they may leave above 0 (see ``RowWant.normalized``)."""
    figures: Figures
    perturbed: float = 0.0
    """``score`` and Gumbel noise, where that was wanted: a function of the seed, the branch's tokens and this
    one. Else ``score``."""


class RowWant(NamedTuple):
    """What a strategy wants of each row."""

    offers: int = 0
    """How many of the best candidates, or all where the law has fewer; 0: one drawn token."""
    perturbed: bool = False
    """Whether the best by ``Offer.perturbed``: a sample without replacement, in the order of its drawing
    (Gumbel top-k, Kool et al. 2019)."""
    normalized: bool = True
    """Whether scores are log-probabilities of the law that the rules made. If not, the rules see the model's
    log-probabilities, and what they leave of them are the scores, as in Transformers' beam search."""
    law: bool = False
    """Whether the whole law, in ``RowResult.law``, so that any candidate can be had (``RowResult.offer``)."""
    hidden: bool = False
    """Whether ``Branches.hidden`` is to have the hidden states of a branch's tokens."""


class Law(NamedTuple):
    """A row's law, whole."""

    processed: Distribution
    """What the rules made of it."""
    scores: npt.NDArray[np.float64]
    """[n] the score of each of its candidates, by ascending id: see ``Offer.score``."""
    model: Distribution
    """The model's own."""


class RowResult(NamedTuple):
    """What came of the row after a branch's last token."""

    branch: Any
    """The branch, by the name that is handed back."""
    token: int
    """The token that was drawn; where offers are wanted, the first of them."""
    figures: Figures
    """What the model thought of it."""
    offers: tuple[Offer, ...] = ()
    """The best candidates, best first, those that tie by id."""
    law: Law | None = None
    """Every candidate that the rules left, where that was wanted."""

    def offer(self, token: int) -> Offer:
        """Any candidate of the law, with its figures."""
        assert self.law is not None
        law, model = self.law.processed, self.law.model
        place = int(np.searchsorted(law.ids, token))
        at = int(np.searchsorted(model.ids, token))
        logit = model.logits[at]
        better = np.count_nonzero(model.logits > logit) + np.count_nonzero(model.logits[:at] == logit)
        figures = self.figures._replace(
            logprob=float(model.log_probabilities[at]),
            processed_logprob=float(law.log_probabilities[place]),
            rank=int(better),
        )
        return Offer(token, float(self.law.scores[place]), figures)


class Task(NamedTuple):
    """What a method is told of the request that it begins."""

    n: int
    """How many candidates are to be returned."""
    max_tokens: int
    end_ids: frozenset[int]
    """Tokens that end a branch."""
    vocab_size: int
    learns: bool = False
    """Whether a rule learns from what is drawn: of an offer made of the law it would learn nothing."""
    traced: bool = False
    """Whether the tree of the search is to be kept."""
    transformers: bool = False
    """Whether to do as Transformers does, where that differs."""
    stops: bool = True
    """Whether there may be stop strings, which end a branch with any token."""


class Branches(Protocol):
    """What a strategy may do with its request's branches; each is to it a name."""

    def append(self, branch: Any, token: int, figures: Figures) -> None:
        """Add a token to a branch, for the time being: rules see it, a caller does not."""
        ...

    def commit(self, branch: Any) -> bool:
        """Make a branch's tokens final: they become text, are matched for stops, may be streamed and shared.

        True where one of them ended the branch: the tokens after it are gone.
        """
        ...

    def fork(self, branch: Any, length: int | None = None) -> Any:
        """A second branch of the same tokens, which shares everything that was computed for them.

        length: of its first so many generated tokens alone, and with a row still to come; the branch may
        have ended.
        """
        ...

    def drop(self, branch: Any) -> None:
        """End a branch that is no result; one that has ended is none any more."""
        ...

    def finish(self, branch: Any, reason: FinishReason) -> None:
        """Commit a branch's tokens and end it as a result, if none of them did."""
        ...

    def score(self, branch: Any, score: float, total: float) -> None:
        """Say what results are ranked by, best first, and the sum of log-probabilities that it is made of."""
        ...

    def hidden(self, branch: Any, first: int) -> npt.NDArray[np.float32]:
        """[n, hidden_size] final hidden states of tokens from position ``first`` of prompt and output.

        Of those whose row has come: the last of them is the branch's last token in ``grow``.
        """
        ...

    def tokens(self, branch: Any) -> Sequence[int]:
        """The generated tokens of a branch, which are not to be changed."""
        ...


class Strategy(Protocol):
    """How a request's branches grow."""

    width: int
    """How many branches a request starts with, each at the end of the prompt."""
    together: bool
    """Whether ``grow`` wants the rows of all growing branches at once; else it takes them as they come."""
    want: RowWant = RowWant()
    """What it wants of each row."""
    revises: bool = False
    """Whether it may drop branches that have final tokens: a stream then shows what all of them agree on."""
    backtracks: bool = False
    """Whether it may fork a branch back to where no other branch is: a stream then shows nothing before the
    end."""
    tree: Tree | None = None
    """What it has considered and kept so far, where its task asks for that."""

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        """Grow each branch of the frontier by at least a token, or end it.

        It is called again, within the same step, with the rows of drafted tokens: where a branch's new last
        token is one that was drafted after it, its next row is already there.
        """
        ...


class Method(Protocol):
    """A strategy's settings, as a caller gives them: the same for any number of requests."""

    uses_model_settings: bool
    """Whether the model's own sampling settings hold where the caller gives none."""

    def begin(self, task: Task) -> Strategy:
        """The strategy of one request. Raises ``ParameterError`` for what does not go with the task."""
        ...
