"""What a rule is: one transformation of a row of candidates, and what it remembers of a branch's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from unspool.errors import ParameterError, shown
from unspool.sampling.distribution import masses
from unspool.sampling.plan import Ties

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

NO_TOKENS: Int32Array = np.empty(0, np.int32)
NO_AMOUNTS: Float32Array = np.empty(0, np.float32)
NO_ENTRY = -1
"""The kind of what is no entry of a plan."""


class NoiseSource(NamedTuple):
    """Where a row's noise comes from: everything that it depends on but the token."""

    key: int = 0
    position: int = 0
    sample_index: int = 0


class Inputs(NamedTuple):
    """What a rule is given beside the row: what the branch's tokens have come to, and noise."""

    tokens: Int32Array = NO_TOKENS
    """[m] distinct token ids."""
    amounts: Float32Array = NO_AMOUNTS
    """[m] what to add to each."""
    noise: NoiseSource = NoiseSource()


class Facts(NamedTuple):
    """What a rule may learn of a token that was drawn."""

    surprise: float
    """-log p (nats) under the law that reached the rule."""
    processed_surprise: float
    """-log p (nats) under the law that it was drawn from."""


@dataclass
class LogitsRow:
    """The candidates that a chain has kept so far; at least one, and none of their logits is -inf or NaN."""

    ids: Int32Array
    """[n] token ids, ascending."""
    logits: Float32Array
    """[n] their logits, as the rules so far have left them."""
    vocabulary: int = 0
    """How many tokens the model has."""
    witnessed: list[tuple[Int32Array, Float32Array]] = field(default_factory=list)
    """The candidates that reached each WITNESS, with their logits."""

    @classmethod
    def of(cls, logits: Float32Array) -> LogitsRow:
        """Every token of a [vocabulary] row of logits that is not banned, that is, not -inf."""
        ids = np.flatnonzero(logits > -np.inf).astype(np.int32)
        return cls(ids, logits[ids], len(logits))

    def keep(self, chosen: BoolArray) -> None:
        """Drop every candidate that is not ``chosen`` ([n])."""
        self.ids, self.logits = self.ids[chosen], self.logits[chosen]

    def take(self, logits: Float32Array) -> None:
        """Go on with other logits; a candidate whose logit fell below float32 to -inf is dropped.

        Where all fell none is, so that a row beyond float32 is not taken for one that is banned.
        """
        self.logits = logits
        finite = logits > -np.inf
        if finite.any():
            self.keep(finite)

    def divide(self, temperature: float) -> None:
        """Divide the logits in float32."""
        with np.errstate(over="ignore"):
            self.take(self.logits / np.float32(temperature))

    def descending(self) -> npt.NDArray[np.int64]:
        """[n] places of the candidates by descending logit, and ascending id where logits tie."""
        return np.argsort(-self.logits, kind="stable")

    def keep_first(self, count: int) -> None:
        """Keep the first ``count`` candidates of the descending order."""
        chosen = np.zeros(len(self.ids), np.bool_)
        chosen[self.descending()[:count]] = True
        self.keep(chosen)

    def keep_from(self, level: int) -> None:
        """Keep the candidates with masses w >= L - (L >> 21), or the most probable one if there is none.

        L / 2**21 is the rounding of float32 logits and of exp, so that p exactly at a threshold stays.
        """
        chosen = masses(self.logits) >= level - (level >> 21)
        if chosen.any():
            self.keep(chosen)
        else:
            self.keep_first(1)

    def keep_smallest(self, score: Float32Array, weights: Int64Array, target: int, ties: Ties) -> None:
        """Keep the first candidates by ascending ``score`` until their ``weights`` reach ``target``.

        score, weights: [n]; target: 1 or more; where it is not reached all are kept. The candidate that
        reaches it is kept; of candidates that score as it does, those that ``ties`` says.
        """
        if ties == Ties.HIGHEST_ID:
            order = len(score) - 1 - np.argsort(score[::-1], kind="stable")
        else:
            order = np.argsort(score, kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[order]), target)) + 1
        if count > len(order):
            return
        if ties == Ties.ALL:
            self.keep(score <= score[order[count - 1]])
            return
        chosen = np.zeros(len(order), np.bool_)
        chosen[order[:count]] = True
        self.keep(chosen)


class Memory(Protocol):
    """What a rule remembers of one branch's tokens: a value that can be copied."""

    @property
    def tokens(self) -> Int32Array:
        """[m] the tokens that the rule acts on at the branch's next row, distinct; not to be kept."""
        ...

    @property
    def amounts(self) -> Float32Array:
        """[m] what it adds to each, or [0] if it adds nothing; not to be kept."""
        ...

    @property
    def values(self) -> tuple[float, ...] | None:
        """The rule's values at the next row; ``None``: as they were."""
        ...

    def extend(self, token: int, facts: Facts) -> None:
        """Take in a token that the branch goes on with."""
        ...

    def precede(self, token: int) -> None:
        """Take in one more token of the prompt, before anything is generated."""
        ...

    def fork(self) -> Self:
        """A memory of the same tokens that goes its own way."""
        ...


class Rule(Protocol):
    """One transformation of a row."""

    name: ClassVar[str]
    """As an order names it."""

    @property
    def kind(self) -> int:
        """``RuleKind``: what its entry of a compiled chain is; ``NO_ENTRY``: it has none."""
        ...

    @property
    def values(self) -> tuple[float, ...]:
        """[up to 3] its parameters, as ``RuleKind`` lists them."""
        ...

    @property
    def is_off(self) -> bool:
        """Whether the rule leaves every row as it is."""
        ...

    def memory(self, prompt: Sequence[int]) -> Memory | None:
        """What it remembers of a branch that has said nothing yet; ``None``: it needs no memory."""
        ...

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Transform ``row`` in place. Comparisons that keep candidates never drop all of them."""
        ...


class Stateless:
    """A rule that needs no memory, and can always do something."""

    @property
    def is_off(self) -> bool:
        """Never."""
        return False

    def memory(self, prompt: Sequence[int]) -> Memory | None:
        """None."""
        return None


class Constant:
    """The memory of a rule that acts on the same tokens at every row."""

    __slots__ = ("amounts", "tokens")

    values = None

    def __init__(self, tokens: Int32Array, amounts: Float32Array = NO_AMOUNTS) -> None:
        self.tokens, self.amounts = tokens, amounts

    def extend(self, token: int, facts: Facts) -> None:
        """Nothing changes."""

    def precede(self, token: int) -> None:
        """Nothing changes."""

    def fork(self) -> Self:
        """Itself: it never changes."""
        return self


def require(name: str, value: object, holds: bool, allowed: str) -> None:
    """Raise ``ParameterError`` unless the parameter of the rule ``name`` is in its range."""
    if not holds:
        raise ParameterError(f"{name} must be {allowed}, not {shown(value)}")
