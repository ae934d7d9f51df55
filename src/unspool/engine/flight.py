"""A request in flight: its branches, what it has yielded so far, and how it fared."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from unspool.engine.agreement import Agreement
from unspool.engine.branch import Branch, Detokenizer
from unspool.engine.request import Request
from unspool.errors import UnspoolError
from unspool.results import Candidate, Chunk, FinishReason, Generation, Spread, Timing, Usage
from unspool.select import Choice
from unspool.select.base import Chooser
from unspool.strategy import Figures, RowResult

if TYPE_CHECKING:
    from unspool.engine.prompt_figures import PromptFigures


class Flight:
    """One request from its submission to its end.

    The engine's driver alone changes it. Its caller reads: ``outbox`` holds the chunks of a stream that
    nobody has taken yet, ``done`` says that nothing more will come, ``error`` why nothing did.

    number: which request of its engine this is, from 1: what errors call it.
    streaming: whether chunks are wanted.
    on_event: called by the driver when there is a new chunk, and at the end.
    interval: how many seconds of a stream make one chunk at least; 0 is a chunk for every step.
    """

    def __init__(
        self,
        request: Request,
        number: int,
        *,
        streaming: bool = False,
        on_event: Callable[[], None] | None = None,
        interval: float = 0.0,
    ) -> None:
        self.request = request
        self.number = number
        self.streaming = streaming
        self.on_event = on_event
        self.interval = interval
        self.due = 0.0 if streaming else math.inf
        """When the next chunk is."""
        self.branches: list[Branch] = []
        """Those that grow, and those that are results."""
        self.outbox: deque[Chunk] = deque()
        self.error: BaseException | None = None
        self.done = False
        self.cancelled: UnspoolError | None = None
        """The error that it is to end with, once somebody has cancelled it."""
        self.all_begun = False
        """Whether branches beyond the first have been let start."""
        self.dropped = False
        """Whether a branch was dropped in this step."""
        self.generated = 0
        """Tokens that have become final, over all branches that ever were."""
        self.submitted = perf_counter()
        self.started = self.first_token = self.last_token = 0.0
        self.cached_tokens = self.preemptions = 0
        self.forks: list[Branch] = []
        """Branches that this step made."""
        self.prompt_figures: PromptFigures | None = None
        """How probable the prompt's tokens were, if that was asked for."""
        self.new_detokenizer: Callable[[], Detokenizer]
        """Makes one for a branch that begins."""
        self.choice: Choice | None = None
        """What the selection has made of the candidates."""
        self._chooser = None if request.select is None else request.select.begin()
        self._finished: list[Candidate | None] = []
        """Of a selection, the samples that have ended, in sample order."""
        self._scored: dict[Branch, None] = {}
        """Branches that have a score, in the order in which they got it: of those that tie, the earlier."""
        self._agreement = Agreement() if request.revises else None
        self._now = 0.0
        self._frontier: dict[Branch, RowResult] = {}
        self._lengths: dict[Branch, int] = {}
        """How many tokens each branch had that the strategy is growing."""
        self._next_index = request.strategy.width

    @property
    def growing(self) -> list[Branch]:
        """The branches that have not ended."""
        return [branch for branch in self.branches if branch.growing]

    def grow(self, rows: Sequence[RowResult], now: float) -> None:
        """Let the strategy grow the branches whose rows have come, and again where drafts have their next."""
        self._now = now
        if self.request.strategy.together:
            self._frontier.update((row.branch, row) for row in rows)
            if any(branch not in self._frontier for branch in self.growing):
                return
            # by index, whichever came first: forks are numbered in the order in which they are made
            rows, self._frontier = sorted(self._frontier.values(), key=lambda row: row.branch.index), {}
        while rows:
            self._grow(rows)
            rows = self._drafted_rows() if self.request.proposer is not None else ()
        if self._chooser is not None and not self.request.strategy.revises:
            self._settle(self._chooser)

    def _grow(self, rows: Sequence[RowResult]) -> None:
        """Let the strategy grow branches once.

        Raises ``UnspoolError`` for one that is left as it was: no further row of it would ever come.
        """
        self._lengths = {row.branch: len(row.branch.token_ids) for row in rows}
        self.request.strategy.grow(rows, self)
        for branch, length in self._lengths.items():
            if branch.growing and len(branch.token_ids) == length:
                raise UnspoolError(
                    f"the strategy of request {self.number} has neither given branch {branch.index} a token "
                    "nor ended it"
                )

    def _settle(self, chooser: Chooser) -> None:
        """End the samples that can no longer change what is chosen, and forget those that came too early.

        Raises what the selection does.
        """
        for at, branch in enumerate(self.branches):
            if at == len(self._finished):
                self._finished.append(None)
            if self._finished[at] is None and not branch.growing:
                self._finished[at] = branch.candidate()
        decided = chooser.settled(self._finished)
        if decided is not None and decided < len(self.branches):
            for branch in self.branches[decided:]:
                self.drop(branch)
            del self._finished[decided:]

    def _drafted_rows(self) -> list[RowResult]:
        """The rows of branches whose last token was drafted; where all grow together, of all or of none."""
        growing = self.growing
        drafted = [(b, b.drafted) for b in growing if b.drafted is not None and b.drafted.ahead]
        if self.request.strategy.together and len(drafted) < len(growing):
            return []
        return [RowResult(branch, *draft.advance()) for branch, draft in drafted]

    def append(self, branch: Branch, token: int, figures: Figures) -> None:
        """Add a token to a branch, for the time being."""
        branch.append(token, figures)
        if branch.drafted is not None:
            branch.drafted.follow(token)

    def commit(self, branch: Branch) -> bool:
        """Make a branch's tokens final; whether one of them ended it."""
        self.last_token = self._now
        if self.first_token == 0.0:
            self.first_token = self._now
        before = branch.final
        ended = branch.commit(self._now)
        self.generated += branch.final - before
        return ended

    def fork(self, branch: Branch, length: int | None = None) -> Branch:
        """A second branch of the same tokens, or of the first ``length`` of them."""
        if length is not None and (length < len(branch.token_ids) or not branch.growing):
            return self._fork_back(branch, length)
        twin = branch.fork(self._next_index)
        if branch in self._lengths:
            self._lengths[twin] = self._lengths[branch]
        self._next_index += 1
        if branch.drafted is not None:
            twin.drafted = branch.drafted.fork()
            for track, other in zip(twin.tracks, branch.tracks, strict=True):
                track.table.truncate(other.start + 1)  # what it follows of the draft it computes again
        self.branches.append(twin)
        self.forks.append(twin)
        return twin

    def _fork_back(self, branch: Branch, length: int) -> Branch:
        twin = branch.fork_back(self._next_index, length)
        self._next_index += 1
        self.branches.append(twin)
        self.forks.append(twin)
        return twin

    def score(self, branch: Branch, score: float, total: float) -> None:
        """Say what results are ranked by, and the sum that it is made of."""
        branch.score, branch.total = score, total
        self._scored.pop(branch, None)
        self._scored[branch] = None

    def hidden(self, branch: Branch, first: int) -> npt.NDArray[np.float32]:
        """[n, hidden_size] hidden states of a branch's tokens from position ``first`` on."""
        return branch.hidden(first)

    def tokens(self, branch: Branch) -> Sequence[int]:
        """The generated tokens of a branch."""
        return branch.token_ids

    def drop(self, branch: Branch) -> None:
        """End a branch that is no result."""
        branch.growing = False
        self.dropped = True
        self.branches.remove(branch)
        self._scored.pop(branch, None)

    def finish(self, branch: Branch, reason: FinishReason) -> None:
        """Commit a branch's tokens and end it as a result, if none of them did."""
        if not self.commit(branch):
            branch.finish(reason, None)

    @property
    def ended(self) -> bool:
        """Whether all its branches have."""
        if self.branches and self.branches[-1].growing:
            return False
        return not any(branch.growing for branch in self.branches)

    def publish(self, ended: bool, now: float) -> bool:
        """Put out what has become certain; whether the caller is to be told of it.

        ended: whether all branches have.
        """
        if not self.streaming:
            return ended
        chunks = self._chunks(ended)
        if ended and self.request.select is None:
            last = chunks.pop() if chunks else Chunk("", ())
            chunks.append(replace(last, generation=self.generation()))
        if chunks:
            self.due = now + self.interval
        self.outbox.extend(chunks)
        return ended or bool(chunks)

    def _chunks(self, ended: bool) -> list[Chunk]:
        if self._agreement is None:
            return [chunk for branch in self.branches if (chunk := branch.take_chunk()) is not None]
        if ended:
            return [] if self.request.select is not None else self._agreement.last_chunks(self.ranked)
        if self.request.strategy.backtracks:
            return []
        chunk = self._agreement.take_chunk(self.branches)
        return [] if chunk is None else [chunk]

    def conclude(self) -> list[Chunk]:
        """The last chunks of a stream that a selection ends: it is its reader who chooses, off the steps."""
        if self.error is not None or self.request.select is None:
            return []
        assert self._agreement is not None
        generation = self.generation()
        [chunk] = self._agreement.last_chunks(self.ranked[:1])  # the others are in the result
        return [replace(chunk, generation=generation)]

    @property
    def ranked(self) -> list[Branch]:
        """The branches of a flight that has ended, as results come: best first, or in sample order."""
        made = self.branches
        if not any(branch.score is None for branch in made):
            made = sorted(self._scored, key=lambda branch: -cast(float, branch.score))
        return made if self.choice is None else [made[at] for at in self.choice.order]

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self.error = error
        self.done = True
        self.tell()

    def tell(self) -> None:
        """Call the caller, whatever comes of it."""
        if self.on_event is not None:
            with suppress(Exception):  # a caller's own callback, which may be what failed
                self.on_event()

    def generation(self) -> Generation:
        """The result of a flight that is done, chosen now if it is to be.

        Raises its error, if it ended with one, and what its selection raises.
        """
        if self.error is not None:
            raise self.error
        if self._chooser is not None and self.choice is None:
            self.choice = self._chooser.choose([branch.candidate() for branch in self.ranked])
        candidates = self._candidates()
        completion = sum(len(candidate.token_ids) for candidate in candidates)
        usage = Usage(len(self.request.prompt), completion, self.cached_tokens)
        figures = self.prompt_figures
        prompt_tokens = () if figures is None else figures.tokens
        tree = self.request.strategy.tree
        return Generation(
            candidates, self.request.seed, usage, self._timing(), 0, prompt_tokens, self.choice, tree
        )

    def _candidates(self) -> list[Candidate]:
        """The results; those of a search are numbered by rank, all others by sample."""
        made = [branch.candidate() for branch in self.ranked]
        if self.choice is None and self.request.revises:
            made = [replace(candidate, index=rank) for rank, candidate in enumerate(made)]
        return made

    def _timing(self) -> Timing:
        drawn = sum(branch.final for branch in self.branches)
        gaps = [b - a for branch in self.branches for a, b in zip(branch.times, branch.times[1:])]  # noqa: B905
        return Timing(
            queue_seconds=self.started - self.submitted,
            prefill_seconds=self.first_token - self.started,
            time_to_first_token=self.first_token - self.submitted,
            decode_seconds=self.last_token - self.first_token,
            drawn_tokens=drawn,
            decoded_tokens=drawn - len(self.branches),
            between_tokens=Spread.of(gaps),
            preemptions=self.preemptions,
        )
