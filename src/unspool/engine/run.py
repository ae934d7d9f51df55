"""A request on its way: its prompt computed once, its samples grown together from it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from unspool.cache import BLOCK_SIZE, BlockTable, blocks_for_tokens
from unspool.engine.batch import NO_ROWS, DecodeBatch, chunk_step, sample_plan
from unspool.engine.branch import Branch, Figures
from unspool.engine.request import Request
from unspool.errors import ContextLengthError, RowError
from unspool.results import Generation, Timing, Usage
from unspool.sampling.plan import RowResults, RowStatus

if TYPE_CHECKING:
    from unspool.engine.engine import Engine


class Run:
    """One request in an engine. ``steps()`` computes it, once; ``generation()`` is what came of it.

    All samples draw their first token from the prompt's last row, then fork from the prompt's blocks.
    Where the cache cannot hold all of them at once they go in groups: the tokens are the same.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine = engine
        self.request = request
        self.branches = [engine.new_branch(request, index) for index in range(request.params.n)]
        self.started = self.prefill_seconds = self.first_token_seconds = self.decode_seconds = 0.0
        self.decoded_tokens = 0

    def steps(self) -> Generator[list[Branch], None, None]:
        """Compute step by step; after each, the branches that grew. Closing it frees the cache.

        Raises ``RowError`` for a row that has no law, ``BackendError`` for a step that cannot be computed.
        """
        self.started = perf_counter()
        group, blocks = self._plan_groups()
        with self.engine.hold(blocks) as read_here:
            root = BlockTable(self.engine.pool)
            try:
                yield self._first(root)
                read_here()
                for start in range(0, len(self.branches), group):
                    live = [b for b in self.branches[start : start + group] if b.finish_reason is None]
                    with self.engine.lock:
                        for branch in live:
                            branch.table = root.fork()
                        if start + group >= len(self.branches):
                            root.free()
                    for grown in self._decode(live):
                        yield grown
                        read_here()
            finally:
                with self.engine.lock:
                    root.free()
                    for branch in self.branches:
                        branch.free()

    def generation(self, dropped_messages: int = 0) -> Generation:
        """The result of a run whose steps are done."""
        candidates = [branch.candidate() for branch in self.branches]
        timing = Timing(
            prefill_seconds=self.prefill_seconds,
            time_to_first_token=self.first_token_seconds,
            decode_seconds=self.decode_seconds,
            drawn_tokens=self.decoded_tokens + len(self.branches),
            decoded_tokens=self.decoded_tokens,
        )
        completion = sum(len(candidate.token_ids) for candidate in candidates)
        usage = Usage(len(self.request.prompt), completion)
        return Generation(candidates, self.request.seed, usage, timing, dropped_messages)

    def _plan_groups(self) -> tuple[int, int]:
        """How many samples to grow at once, and the cache blocks that they take with the prompt."""
        request, pool, n = self.request, self.engine.pool, self.request.params.n
        shared, partial = divmod(len(request.prompt), BLOCK_SIZE)
        kept = int(partial > 0)  # the prompt's last block, which each sample copies
        own = blocks_for_tokens(request.length) - shared
        if n <= self.engine.step_tokens and shared + n * own <= pool.num_blocks:
            return n, shared + n * own
        group = min(self.engine.step_tokens, (pool.num_blocks - shared - kept) // own)
        if group < 1:
            raise ContextLengthError(
                f"n={n} samples of up to {request.max_tokens} tokens after a prompt of {len(request.prompt)} "
                f"do not fit in a cache of {pool.num_tokens}: give a larger cache_tokens or cache_memory"
            )
        return group, shared + kept + group * own

    def _first(self, root: BlockTable) -> list[Branch]:
        """Compute the prompt in chunks and draw every sample's first token from its last row."""
        engine, prompt = self.engine, np.array(self.request.prompt, dtype=np.int32)
        began = perf_counter()
        last = prompt[(len(prompt) - 1) // engine.step_tokens * engine.step_tokens :]
        for start in range(0, len(prompt) - len(last), engine.step_tokens):
            with engine.lock:
                step = chunk_step(prompt[start : start + engine.step_tokens], root, NO_ROWS)
                engine.backend.forward(step)
        rows = np.zeros(len(self.branches), dtype=np.int32)
        plan = sample_plan(self.request, self.branches, rows, len(prompt))
        with engine.lock:
            output = engine.backend.forward(chunk_step(last, root, np.array([len(last) - 1], dtype=np.int32)))
            self.prefill_seconds = perf_counter() - began
            results = engine.backend.sample(output, plan)
        self._accept(self.branches, results)
        self.first_token_seconds = perf_counter() - self.started
        return self.branches

    def _decode(self, live: list[Branch]) -> Iterator[list[Branch]]:
        """Grow branches of one length together until each has ended."""
        backend, lock = self.engine.backend, self.engine.lock
        while live:
            batch = DecodeBatch(self.request, live)
            ended = False
            while not ended:
                began = perf_counter()
                with lock:
                    copies = batch.place()
                    if len(copies):
                        backend.copy_slots(copies)
                    results = backend.sample(backend.forward(batch.step), batch.plan)
                batch.advance()
                ended = self._accept(live, results)
                self.decoded_tokens += len(live)
                self.decode_seconds += perf_counter() - began
                yield live
            with lock:
                for branch in live:
                    if branch.finish_reason is not None:
                        branch.free()
            live = [branch for branch in live if branch.finish_reason is None]

    def _accept(self, branches: list[Branch], results: RowResults) -> bool:
        """Give each branch its drawn token; whether any ended."""
        if results.status.any():
            self._refuse(branches, results)
        tokens = results.tokens.tolist()
        ended = False
        for branch, token, figures in zip(branches, tokens, figures_of(results), strict=True):
            ended = branch.accept(token, figures) or ended
        return ended

    def _refuse(self, branches: list[Branch], results: RowResults) -> None:
        """Raise ``RowError`` for the first row that has no law."""
        at = int(np.flatnonzero(results.status)[0])
        rules = ", ".join(rule.kind.name.lower() for rule in self.request.chain.rules) or "none"
        what = "holds NaN" if results.status[at] == RowStatus.NOT_A_NUMBER else "has no token left"
        raise RowError(
            f"request {self.request.number}, sample {branches[at].index}, token "
            f"{len(branches[at].token_ids)}: the row of logits {what} (rules: {rules})"
        )


def figures_of(results: RowResults) -> Iterator[Figures]:
    """Each row's figures as Python numbers."""
    if results.top_tokens.shape[1]:
        top_rows = zip(results.top_tokens.tolist(), results.top_logprobs.tolist(), strict=True)
        tops = [tuple(zip(ids, logprobs, strict=True)) for ids, logprobs in top_rows]
    else:
        tops = [()] * len(results.tokens)
    return zip(
        results.logprobs.tolist(),
        results.processed_logprobs.tolist(),
        results.ranks.tolist(),
        results.entropies.tolist(),
        results.kept.tolist(),
        tops,
        strict=True,
    )
