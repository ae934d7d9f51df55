"""The seam between policy and arithmetic: a step goes in, rows of logits come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from unspool.cache.size import CacheType
from unspool.model.spec import ModelSpec
from unspool.sampling.offers import Offers
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import Law

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

BLOCK_SIZE = 16
"""Token slots in a block of the paged cache."""


@dataclass
class StepBatch:
    """One forward pass over a ragged batch of token runs: T tokens in S runs.

    Every array is int32, C-contiguous and owned by the caller. Run ``s`` holds tokens
    ``run_starts[s]:run_starts[s + 1]`` of one branch, after ``context_lens[s]`` cached tokens.
    """

    tokens: Int32Array
    """[T] token ids, in ``0..vocab_size-1``."""
    positions: Int32Array
    """[T] logical position in the sequence: one more than the parent's, or the run's context length."""
    slots: Int32Array
    """[T] physical slot (``block * 16 + offset``) that the token's keys and values go to."""
    parents: Int32Array
    """[T] index in this step of the preceding token, earlier in the same run; -1: the cached context."""
    run_starts: Int32Array
    """[S + 1] first token of each run; ``run_starts[S] == T``."""
    block_table: Int32Array
    """[S, max_blocks] physical block of each logical block of 16 positions; -1 where there is none.

    A block of cached tokens may be missing where it is left of what any token of the run sees in any layer
    (``LayerSpec.window``).
    """
    context_lens: Int32Array
    """[S] tokens already in the cache before this step."""
    rows: Int32Array
    """[R] tokens whose next-token logits are wanted, in the order they are wanted, repeated or not.

    R is at most ``max_step_tokens``, and so is H.
    """
    hidden_rows: Int32Array
    """[H] tokens whose final hidden states (after the last norm, before the head) are wanted."""
    exits: Int32Array | None = None
    """[R] after how many layers each row's logits are taken, in ``1..num_layers``; None: after all of them.

    Row ``r`` is ``head(final_norm(x))``, where x is the residual of token ``rows[r]`` after ``exits[r]``
    layers, and the norm and the head are the model's own (as in DoLa, Chuang et al. 2024). Rows may name one
    token with different exits. Keys and values are written in every layer, whatever the exits.
    """


class LogitsHandle(Protocol):
    """Logits where the backend lives."""

    def numpy(self) -> Float32Array:
        """[R, vocab_size] view, read-only; what it holds changes with the backend's next ``forward``."""
        ...


@dataclass
class StepOutput:
    """What a step computed; valid until the next ``forward`` of the same backend."""

    logits: LogitsHandle
    """[R, vocab_size] float32, one row for each of ``StepBatch.rows``."""
    hidden: Float32Array
    """[H, hidden_size] float32, one row for each of ``StepBatch.hidden_rows``; a copy of its own."""


class Backend(Protocol):
    """How a step is computed."""

    spec: ModelSpec
    cache_type: CacheType
    """What keys and values are kept in."""
    max_step_tokens: int
    """The most tokens that one step may hold."""

    def allocate(self, num_blocks: int) -> None:
        """Allocate the paged cache once: ``num_blocks`` blocks of 16 slots in every layer."""
        ...

    def forward(self, step: StepBatch) -> StepOutput:
        """Compute one step; releases the GIL.

        Raises ``BackendError`` for a malformed step, and where another thread is in a step of this backend.
        """
        ...

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        """Run each planned row's chain and draw, in one call."""
        ...

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        """What each planned row's chain makes of it, without a draw, in one call."""
        ...

    def offers(
        self,
        output: StepOutput,
        plan: SamplePlan,
        count: int,
        *,
        perturbed: bool = False,
        log_rows: bool = False,
    ) -> Offers:
        """The ``count`` best candidates that each planned row's chain leaves, in one call."""
        ...

    def copy_slots(self, pairs: Int32Array) -> None:
        """Copy keys and values ``pairs[:, 0] -> pairs[:, 1]`` ([N, 2] slots) in every layer, in order."""
        ...
