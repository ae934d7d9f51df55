"""A compiled chain and what comes of it: plain arrays that any backend can run where the logits are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt


class RuleKind(IntEnum):
    """What one entry of a compiled chain does; the numbers are shared with ``native/sample.h``."""

    REPETITION_PENALTY = 1
    TEMPERATURE = 2
    TOP_K = 3
    TOP_P = 4
    MIN_P = 5


class RowStatus(IntEnum):
    """Whether a row had a law to draw from."""

    OK = 0
    NOT_A_NUMBER = 1
    """It holds NaN or +inf, or a rule's arithmetic took its largest logit beyond float32."""
    EMPTY = 2
    """Every token is banned (-inf)."""


@dataclass
class SamplePlan:
    """What to do with N rows of logits. Arrays are C-contiguous and owned by the caller."""

    rows: npt.NDArray[np.int32]
    """[N] index into the step's logits rows; a row may be named more than once."""
    chain_starts: npt.NDArray[np.int32]
    """[N + 1] row n's chain is entries ``chain_starts[n]:chain_starts[n + 1]``, applied in order."""
    kinds: npt.NDArray[np.int32]
    """[C] ``RuleKind`` of each chain entry."""
    values: npt.NDArray[np.float64]
    """[C] parameter of each chain entry."""
    history_starts: npt.NDArray[np.int64]
    """[N + 1] row n's penalties see ``history[history_starts[n]:history_starts[n + 1]]``."""
    history: npt.NDArray[np.int32]
    """[M] token ids in each row's penalty scope, in any order; a repeated id counts once."""
    keys: npt.NDArray[np.uint64]
    """[N] noise key of each row: ``noise.mix(seed, lane)``."""
    positions: npt.NDArray[np.int32]
    """[N] absolute position of the token to be drawn."""
    sample_indices: npt.NDArray[np.int32]
    """[N] which of a request's samples draws."""
    num_logprobs: int = 0
    """How many of the most probable tokens to report for each row (raw law), 0 to 32."""

    def arrays(self) -> tuple[Any, ...]:
        """Everything in the order above, as the native sampler takes it."""
        return (
            self.rows,
            self.chain_starts,
            self.kinds,
            self.values,
            self.history_starts,
            self.history,
            self.keys,
            self.positions,
            self.sample_indices,
            self.num_logprobs,
        )


@dataclass
class RowResults:
    """What came of each planned row. Where ``status`` is not OK the figures are 0, the tokens -1."""

    integers: npt.NDArray[np.int32]
    """[4, N] ``tokens``, ``status``, ``ranks``, ``kept``: a few arrays are read faster than many."""
    figures: npt.NDArray[np.float32]
    """[3, N] ``logprobs``, ``processed_logprobs``, ``entropies``."""
    top_tokens: npt.NDArray[np.int32]
    """[N, num_logprobs] most probable tokens of the raw row, best first; -1 beyond those not banned."""
    top_logprobs: npt.NDArray[np.float32]
    """[N, num_logprobs] their log-probabilities under the raw row; -inf beyond those not banned."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[N] the drawn token."""
        return self.integers[0, :]

    @property
    def status(self) -> npt.NDArray[np.int32]:
        """[N] ``RowStatus``."""
        return self.integers[1, :]

    @property
    def ranks(self) -> npt.NDArray[np.int32]:
        """[N] rank of the drawn token in the raw row, 0 for the most probable; ties rank by token id."""
        return self.integers[2, :]

    @property
    def kept(self) -> npt.NDArray[np.int32]:
        """[N] how many candidates the chain kept, banned tokens (-inf) not counted."""
        return self.integers[3, :]

    @property
    def logprobs(self) -> npt.NDArray[np.float32]:
        """[N] log-probability of the drawn token under the raw row (natural log, before the chain)."""
        return self.figures[0, :]

    @property
    def processed_logprobs(self) -> npt.NDArray[np.float32]:
        """[N] log-probability of the drawn token under the law that it was drawn from."""
        return self.figures[1, :]

    @property
    def entropies(self) -> npt.NDArray[np.float32]:
        """[N] entropy of the raw row, in nats."""
        return self.figures[2, :]

    @classmethod
    def empty(cls, n: int, num_logprobs: int) -> RowResults:
        """Results of n rows that are yet to be filled."""
        made = cls(
            integers=np.zeros((4, n), np.int32),
            figures=np.zeros((3, n), np.float32),
            top_tokens=np.full((n, num_logprobs), -1, np.int32),
            top_logprobs=np.zeros((n, num_logprobs), np.float32),
        )
        made.tokens[:] = -1
        return made
