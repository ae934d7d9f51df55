"""How probable a prompt's tokens were."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unspool.backend.base import StepOutput
from unspool.engine.branch import TokenTexts, alternatives_of, text_of
from unspool.engine.plans import PlannedRow
from unspool.engine.request import Request
from unspool.engine.row_sampler import RowSampler, no_law, output_of
from unspool.errors import RowError
from unspool.results import PromptToken
from unspool.sampling.chain import ChainMemory
from unspool.sampling.plan import RowStatus
from unspool.sampling.rules import NoiseSource
from unspool.sampling.sampler import NoLawError
from unspool.strategy import Figures

ROWS_AT_ONCE = 64
"""A plan holds what each row's rules remember, which may be as much as the prompt."""


class PromptFigures:
    """Takes the rows of a prompt's tokens as they are computed, and keeps the figures of each next token.

    The rules see what they would see if the prompt ended before the token.
    """

    def __init__(self, request: Request, sampler: RowSampler, texts: TokenTexts) -> None:
        self.request = request
        self._sampler = sampler
        self._texts = texts
        self._figures: list[Figures] = []
        self._tokens = [PromptToken(request.prompt[0], text_of(request.prompt[0], texts))]
        self._memory = request.chain.memory(request.prompt[:1])
        self._seen = 1
        """How many of the prompt's tokens the memory has taken in."""

    def read(self, first: int, rows: npt.NDArray[np.float32]) -> None:
        """Row i of ``rows`` [t, vocab_size] follows token ``first + i``. Raises what a rule raises."""
        self._measure(first, rows)
        # Made with the rows, piece by piece: all at once, in the end, they would hold up others' tokens.
        del self._tokens[first + 1 :]
        for position, figures in enumerate(self._figures[first:], first + 1):
            self._tokens.append(self._token(self.request.prompt[position], figures))

    def _measure(self, first: int, rows: npt.NDArray[np.float32]) -> None:
        output = output_of(rows)
        del self._figures[first:]  # which an interrupt may have left there
        end = min(len(rows), len(self.request.prompt) - 1 - first)
        if self.request.chain.custom is not None:
            for at in range(end):
                self._figures.append(self._look(output, at, first))
            return
        for start in range(0, end, ROWS_AT_ONCE):
            planned = (self._row(at, first) for at in range(start, min(end, start + ROWS_AT_ONCE)))
            figures, statuses = self._sampler.figures(output, planned, self._num_logprobs)
            for position, status in enumerate(statuses, first + start + 1):
                if status:
                    raise self._error(position, status)
            self._figures += figures

    @property
    def _num_logprobs(self) -> int:
        return self.request.params.prompt_logprobs or 0

    def _row(self, at: int, first: int) -> PlannedRow:
        """Row ``at``, whose memory is right until the next one is asked for."""
        chain, position = self.request.chain, first + at + 1
        noise, given = NoiseSource(self.request.key, position, 0), self.request.prompt[position]
        return PlannedRow(at, chain, 0, len(chain.rules), self._memory_at(position), noise, given)

    def _look(self, output: StepOutput, at: int, first: int) -> Figures:
        """The figures of one row that goes through a caller's own rules."""
        row = self._row(at, first)
        try:
            return self._sampler.look(
                output, at, row.chain, row.memory, row.noise, given=row.given, num_logprobs=self._num_logprobs
            )[1]
        except NoLawError as fault:
            raise self._error(first + at + 1, fault.status) from fault

    def _error(self, position: int, status: RowStatus) -> RowError:
        return no_law(f"token {position} of the prompt", self.request.chain, status)

    def _memory_at(self, count: int) -> ChainMemory | None:
        """What the rules remember where the prompt has ``count`` tokens."""
        if self._memory is None:
            return None
        if count < self._seen:  # after an interrupt
            self._memory, self._seen = self.request.chain.memory(self.request.prompt[:count]), count
        assert self._memory is not None
        # An interrupt in here may leave some rules a token ahead of others: what is there is no use then.
        seen, self._seen = self._seen, len(self.request.prompt)
        for token in self.request.prompt[seen:count]:
            self._memory.precede(token)
        self._seen = count
        return self._memory

    @property
    def tokens(self) -> tuple[PromptToken, ...]:
        """The prompt's tokens, with their figures, that have been read."""
        return tuple(self._tokens)

    def _token(self, token: int, figures: Figures) -> PromptToken:
        return PromptToken(
            token,
            text_of(token, self._texts),
            figures.logprob,
            figures.processed_logprob,
            figures.rank,
            figures.entropy,
            figures.kept,
            alternatives_of(figures.best, self._texts),
            alternatives_of(figures.best_processed, self._texts),
        )
