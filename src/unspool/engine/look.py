"""The law of the token that comes after a prompt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unspool.engine.branch import TokenTexts, alternatives_of
from unspool.engine.request import Request
from unspool.engine.row_sampler import RowSampler, no_law, output_of
from unspool.results import Distribution
from unspool.sampling.rules import NoiseSource
from unspool.sampling.sampler import NoLawError

SHOWN = 10
"""How many of the most probable tokens come with their texts, unless ``logprobs`` says more."""


class Look:
    """Takes the row that follows a prompt, and makes the distribution of a request's first token of it."""

    def __init__(self, request: Request, sampler: RowSampler, texts: TokenTexts) -> None:
        self.request = request
        self.distribution: Distribution | None = None
        self._sampler = sampler
        self._texts = texts

    def read(self, first: int, rows: npt.NDArray[np.float32]) -> None:
        """``rows`` [1, vocab_size] follows the prompt. Raises ``RowError``, and what a rule raises."""
        request, output = self.request, output_of(rows)
        chain, memory = request.chain, request.chain.memory(request.prompt)
        noise = NoiseSource(request.key, len(request.prompt), 0)
        most = max(SHOWN, request.params.logprobs)
        try:
            own = self._sampler.own_rows(output, 0, chain, memory, noise)
            law = self._sampler.law(output, 0, chain, memory, noise, own)
            _, figures = self._sampler.figure(
                output, 0, chain, memory, noise, own, num_logprobs=most, traced=True
            )
        except NoLawError as fault:
            raise no_law("the next token", chain, fault.status) from fault
        order = np.lexsort((law.ids, -law.probabilities))
        self.distribution = Distribution(
            ids=law.ids[order],
            probabilities=law.probabilities[order],
            entropy_before=figures.entropy,
            entropy=law.entropy,
            top_logprobs=alternatives_of(figures.best, self._texts),
            top_processed_logprobs=alternatives_of(figures.best_processed, self._texts),
            trace=figures.trace,
        )
