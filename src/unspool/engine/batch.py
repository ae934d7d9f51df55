"""The arrays of a step: a chunk of one prompt, or one token of each of several branches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unspool.backend.base import Int32Array, StepBatch
from unspool.cache import Appended, BlockTable, blocks_for_tokens
from unspool.engine.branch import Branch
from unspool.engine.request import Request
from unspool.errors import ContextLengthError
from unspool.sampling.plan import SamplePlan

NO_ROWS: Int32Array = np.empty(0, dtype=np.int32)
NO_TOKENS: Int32Array = np.empty(0, dtype=np.int32)


def append(table: BlockTable, count: int) -> Appended:
    """Append to a table. Raises ``ContextLengthError`` if the cache is out of blocks."""
    appended = table.append(count)
    if appended is None:
        raise ContextLengthError(
            f"the cache of {table.pool.num_tokens} tokens is full: give a larger cache_tokens or cache_memory"
        )
    return appended


def chunk_step(tokens: Int32Array, table: BlockTable, rows: Int32Array) -> StepBatch:
    """A step of one run: ``tokens`` at the end of an unshared ``table``, wanting ``rows`` of them."""
    count, start = len(tokens), table.length
    slots = append(table, count).slots
    return StepBatch(
        tokens=tokens,
        positions=np.arange(start, start + count, dtype=np.int32),
        slots=slots,
        parents=np.arange(-1, count - 1, dtype=np.int32),
        run_starts=np.array([0, count], dtype=np.int32),
        block_table=table.blocks.copy()[None],
        context_lens=np.array([start], dtype=np.int32),
        rows=rows,
        hidden_rows=NO_ROWS,
    )


def sample_plan(request: Request, branches: Sequence[Branch], rows: Int32Array, position: int) -> SamplePlan:
    """Draw the token at ``position`` for each of ``branches`` from the step's ``rows``."""
    count, chain = len(branches), request.chain
    kinds, values = chain.kinds, chain.values
    plan = SamplePlan(
        rows=rows,
        chain_starts=np.arange(count + 1, dtype=np.int32) * np.int32(len(kinds)),
        kinds=np.tile(kinds, count),
        values=np.tile(values, count),
        history_starts=np.zeros(count + 1, dtype=np.int64),
        history=NO_TOKENS,
        keys=np.full(count, request.key, dtype=np.uint64),
        positions=np.full(count, position, dtype=np.int32),
        sample_indices=np.array([branch.index for branch in branches], dtype=np.int32),
        num_logprobs=request.params.logprobs,
    )
    set_histories(plan, branches)
    return plan


def set_histories(plan: SamplePlan, branches: Sequence[Branch]) -> None:
    """Give the plan each branch's penalty scope as it stands; nothing where no penalty is on."""
    arrays = [branch.history.array for branch in branches if branch.history is not None]
    if arrays:
        np.cumsum([len(array) for array in arrays], out=plan.history_starts[1:])
        plan.history = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class DecodeBatch:
    """Steps in which each of S branches of one request, all of one length, takes its last token.

    The arrays are made once and changed in place from step to step.
    """

    def __init__(self, request: Request, branches: Sequence[Branch]) -> None:
        count, self.branches = len(branches), list(branches)
        self.tables = [branch.table for branch in branches if branch.table is not None]
        context = self.tables[0].length
        rows = np.arange(count, dtype=np.int32)
        self.step = StepBatch(
            tokens=np.zeros(count, dtype=np.int32),
            positions=np.full(count, context, dtype=np.int32),
            slots=np.zeros(count, dtype=np.int32),
            parents=np.full(count, -1, dtype=np.int32),
            run_starts=np.arange(count + 1, dtype=np.int32),
            block_table=np.full((count, blocks_for_tokens(request.length)), -1, dtype=np.int32),
            context_lens=np.full(count, context, dtype=np.int32),
            rows=rows,
            hidden_rows=NO_ROWS,
        )
        self.plan = sample_plan(request, branches, rows, context + 1)

    def place(self) -> Int32Array:
        """Give each branch's last token a slot; [c, 2] slots to copy before the step, usually none."""
        copies = []
        step = self.step
        for i, (branch, table) in enumerate(zip(self.branches, self.tables, strict=True)):
            appended = append(table, 1)
            step.tokens[i] = branch.token_ids[-1]
            step.slots[i] = appended.slots[0]
            step.block_table[i, : table.num_blocks] = table.blocks
            if len(appended.copies):
                copies.append(appended.copies)
        set_histories(self.plan, self.branches)
        return np.concatenate(copies) if copies else NO_ROWS

    def advance(self) -> None:
        """Go on to the next position."""
        self.step.positions += 1
        self.step.context_lens += 1
        self.plan.positions += 1
