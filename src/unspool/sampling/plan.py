"""A compiled chain and what comes of it: plain arrays that any backend can run where the logits are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_VALUES = 3
"""How many numbers an entry of a chain has; those that its kind does not use are 0."""


class RuleKind(IntEnum):
    """What one entry of a compiled chain does; the numbers are shared with ``native/sample.h``.

    In brackets: the entry's values, and whether it has tokens and amounts.
    """

    REPETITION_PENALTY = 1
    """[r; tokens] z / r or z * r of the tokens."""
    TEMPERATURE = 2
    """[T]"""
    TOP_K = 3
    """[k, Ties]"""
    TOP_P = 4
    """[p, Ties, 1 where the boundary is strict]"""
    MIN_P = 5
    """[m]"""
    ADD = 6
    """[tokens, amounts] z + amount of the tokens: biases, and penalties that subtract."""
    BAN = 7
    """[tokens] -inf."""
    ALLOW = 8
    """[tokens, ascending] -inf for all others."""
    DYNAMIC_TEMPERATURE = 9
    """[least T, largest T, exponent]"""
    TOP_N_SIGMA = 10
    """[n]"""
    TYPICAL = 11
    """[t, Ties: LOWEST_ID or ALL]"""
    EPSILON = 12
    """[e]; mirostat 2 with e = 2**-mu."""
    ETA = 13
    """[e]"""
    TOP_A = 14
    """[a]"""
    TAIL_FREE = 15
    """[z]"""
    TOP_H = 16
    """[a, most candidates or 0, 1 where entropy is summed and not renormalized]"""
    P_LESS = 17
    """[]"""
    XTC = 18
    """[probability, threshold]"""
    MIROSTAT_1 = 19
    """[mu]"""
    ADAPTIVE_P = 20
    """[target]"""
    WITNESS = 21
    """[] Changes nothing: the drawn token's surprise is taken from the law that reaches this entry."""


class Ties(IntEnum):
    """Which of the candidates that are equal at a boundary are kept."""

    LOWEST_ID = 0
    ALL = 1
    HIGHEST_ID = 2


class RowStatus(IntEnum):
    """Whether a row had a law to draw from."""

    OK = 0
    NOT_A_NUMBER = 1
    """It holds NaN or +inf, or a rule's arithmetic took its largest logit beyond float32."""
    EMPTY = 2
    """Every token is banned (-inf)."""


DRAW = -1
"""In ``SamplePlan.given``: draw a token."""


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
    """[C, 3] parameters of each chain entry."""
    token_starts: npt.NDArray[np.int64]
    """[C + 1] entry c's tokens are ``tokens[token_starts[c]:token_starts[c + 1]]``."""
    tokens: npt.NDArray[np.int32]
    """[M] token ids, each at most once in an entry; ascending for ALLOW."""
    amounts: npt.NDArray[np.float32]
    """[M] what ADD adds to each token's logit; not NaN and not +inf; 0 for other kinds."""
    keys: npt.NDArray[np.uint64]
    """[N] noise key of each row: ``noise.mix(seed, lane)``."""
    positions: npt.NDArray[np.int32]
    """[N] absolute position of the token to be drawn."""
    sample_indices: npt.NDArray[np.int32]
    """[N] which of a request's samples draws."""
    given: npt.NDArray[np.int32]
    """[N] a token to give the figures of, instead of drawing one; -1: draw."""
    num_logprobs: int = 0
    """How many of the most probable tokens to report for each row, 0 to 32."""

    def arrays(self) -> tuple[Any, ...]:
        """Everything in the order above, as the native sampler takes it."""
        return (
            self.rows,
            self.chain_starts,
            self.kinds,
            self.values,
            self.token_starts,
            self.tokens,
            self.amounts,
            self.keys,
            self.positions,
            self.sample_indices,
            self.given,
            self.num_logprobs,
        )


@dataclass
class RowResults:
    """What came of each planned row. Where ``status`` is not OK the figures are 0, the tokens -1."""

    integers: npt.NDArray[np.int32]
    """[4, N] ``tokens``, ``status``, ``ranks``, ``kept``: a few arrays are read faster than many."""
    figures: npt.NDArray[np.float32]
    """[4, N] ``logprobs``, ``processed_logprobs``, ``entropies``, ``surprises``."""
    top_tokens: npt.NDArray[np.int32]
    """[2, N, num_logprobs] most probable tokens, best first, of the raw row [0] and of the law that is drawn
    from [1]; -1 beyond those not banned."""
    top_logprobs: npt.NDArray[np.float32]
    """[2, 2, N, num_logprobs] of either list [first index] the log-probabilities under the raw row and under
    the law [second index]; -inf for a token that is not kept, and beyond those not banned."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[N] the drawn token, or the given one."""
        return self.integers[0, :]

    @property
    def status(self) -> npt.NDArray[np.int32]:
        """[N] ``RowStatus``."""
        return self.integers[1, :]

    @property
    def ranks(self) -> npt.NDArray[np.int32]:
        """[N] rank of the token in the raw row, 0 for the most probable; ties rank by token id."""
        return self.integers[2, :]

    @property
    def kept(self) -> npt.NDArray[np.int32]:
        """[N] how many candidates the chain kept, banned tokens (-inf) not counted."""
        return self.integers[3, :]

    @property
    def logprobs(self) -> npt.NDArray[np.float32]:
        """[N] log-probability of the token under the raw row (natural log, before the chain)."""
        return self.figures[0, :]

    @property
    def processed_logprobs(self) -> npt.NDArray[np.float32]:
        """[N] log-probability of the token under the law; -inf for a given token that is not kept."""
        return self.figures[1, :]

    @property
    def entropies(self) -> npt.NDArray[np.float32]:
        """[N] entropy of the raw row, in nats."""
        return self.figures[2, :]

    @property
    def surprises(self) -> npt.NDArray[np.float32]:
        """[N] -log p of the token under the law that reached the chain's last WITNESS; 0 without one."""
        return self.figures[3, :]

    @classmethod
    def empty(cls, n: int, num_logprobs: int) -> RowResults:
        """Results of n rows that are yet to be filled."""
        made = cls(
            integers=np.zeros((4, n), np.int32),
            figures=np.zeros((4, n), np.float32),
            top_tokens=np.full((2, n, num_logprobs), -1, np.int32),
            top_logprobs=np.zeros((2, 2, n, num_logprobs), np.float32),
        )
        made.tokens[:] = -1
        return made
