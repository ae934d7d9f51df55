"""The engine: one backend, one cache, and requests that run on them one step at a time."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from unspool.backend.base import Backend, Float32Array
from unspool.cache import BlockPool, BlockTable, blocks_for_tokens
from unspool.engine.batch import chunk_step
from unspool.engine.branch import Branch, Detokenizer, TokenTexts
from unspool.engine.request import Limits, Request, check_fit, check_prompt, prepare
from unspool.engine.run import Run
from unspool.errors import ContextLengthError
from unspool.params import SamplingParams, Settings

STEP_TOKENS = 256
"""The most tokens that a step is given, where the backend allows as many."""
ROWS_STEP_TOKENS = 64
"""The same where every token's row is wanted: logits take vocabulary * 4 bytes each."""


class Vocabulary(TokenTexts, Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends generation."""
        ...


class Engine:
    """Runs requests on a backend whose cache of ``num_blocks`` blocks it allocates and owns.

    Several threads may run requests: each step is computed under ``lock``, so that steps of several
    requests interleave, and tokens do not depend on it. A request holds the blocks that it may come
    to need from its start to its end, and waits for them while requests of other threads hold them.

    new_detokenizer: makes a detokenizer, given whether special tokens leave no text.
    settings: the model's own sampling settings, by the names of ``SamplingParams``.
    """

    def __init__(
        self,
        backend: Backend,
        vocabulary: Vocabulary,
        new_detokenizer: Callable[[bool], Detokenizer],
        *,
        num_blocks: int,
        settings: Settings | None = None,
    ) -> None:
        backend.allocate(num_blocks)
        self.pool = BlockPool(num_blocks)
        self.backend = backend
        self.vocabulary = vocabulary
        self.new_detokenizer = new_detokenizer
        self.settings = Settings() if settings is None else settings
        self.limits = Limits(
            vocab_size=backend.spec.vocab_size,
            context_length=backend.spec.context_length,
            cache_tokens=self.pool.num_tokens,
            eos_ids=frozenset(vocabulary.eos_ids),
        )
        self.step_tokens = min(STEP_TOKENS, backend.max_step_tokens)
        self.lock = threading.RLock()
        self._freed = threading.Condition(self.lock)
        self._held_blocks = 0
        self._holders: Counter[int] = Counter()
        self._numbers = itertools.count(1)

    def start(self, prompt: Sequence[int], params: SamplingParams) -> Run:
        """A run of one request, checked; nothing is computed before its steps are taken.

        Raises ``ParameterError`` or ``ContextLengthError`` for what cannot be honoured.
        """
        return Run(self, prepare(next(self._numbers), prompt, params, self.limits, self.settings))

    def new_branch(self, request: Request, index: int) -> Branch:
        """Sample ``index`` of a request, with nothing drawn yet."""
        detokenizer = self.new_detokenizer(request.params.skip_special_tokens)
        return Branch(request, index, detokenizer, self.vocabulary)

    def read_rows(self, token_ids: Sequence[int], read: Callable[[int, Float32Array], None]) -> None:
        """Compute a sequence and give ``read`` the logits of its tokens, piece by piece, in order:
        ``read(first, rows)``, where row i of ``rows`` [t, vocab_size] follows token ``first + i``. Rows are
        valid during the call only.

        Raises as ``start`` does, except that a sequence may fill the context.
        """
        ids = check_prompt(token_ids, self.limits.vocab_size)
        check_fit(len(ids), 0, self.limits)
        tokens = np.array(ids, dtype=np.int32)
        step_tokens = min(ROWS_STEP_TOKENS, self.step_tokens)
        with self.hold(blocks_for_tokens(len(ids))):
            table = BlockTable(self.pool)
            try:
                for start in range(0, len(tokens), step_tokens):
                    piece = tokens[start : start + step_tokens]
                    with self.lock:
                        step = chunk_step(piece, table, np.arange(len(piece), dtype=np.int32))
                        read(start, self.backend.forward(step).logits.numpy())
            finally:
                with self.lock:
                    table.free()

    @contextmanager
    def hold(self, blocks: int) -> Iterator[Callable[[], None]]:
        """Hold ``blocks`` of the cache for one request, waiting for other threads' requests to end.

        Gives a function that says that the calling thread reads the request from now on.

        Raises ``ContextLengthError`` where it is this thread's own open streams that hold them, as waiting
        would never end.
        """
        thread = threading.get_ident()

        def read_here() -> None:
            nonlocal thread
            if (reader := threading.get_ident()) != thread:
                with self._freed:
                    self._holders[thread] -= 1
                    self._holders[reader] += 1
                    thread = reader

        with self._freed:
            if self._held_blocks + blocks > self.pool.num_blocks:
                gc.collect()  # closes streams that were left behind in a cycle of references
            while self._held_blocks + blocks > self.pool.num_blocks:
                if self._holders[thread]:
                    raise ContextLengthError(
                        f"the request may need {blocks} of {self.pool.num_blocks} cache blocks, and streams "
                        f"that this thread has open hold {self._held_blocks}: close them, lower "
                        "max_tokens, or give a larger cache_tokens or cache_memory"
                    )
                self._freed.wait()
            self._held_blocks += blocks
            self._holders[thread] += 1
        try:
            yield read_here
        finally:
            with self._freed:
                self._held_blocks -= blocks
                self._holders[thread] -= 1
                self._holders = +self._holders  # threads come and go
                self._freed.notify_all()
