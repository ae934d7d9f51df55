"""A caller's own rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unspool.errors import ParameterError
from unspool.sampling.rules.rule import NO_AMOUNTS, NO_ENTRY, Facts, Float32Array, Inputs, LogitsRow

Processor = Callable[[list[int], Float32Array], Any]
"""Takes the token ids of prompt and output, and the [vocabulary] float32 logits that the rules before it have
left (-inf: banned), which it may change; returns the logits to go on with."""


@dataclass(frozen=True)
class Custom:
    """The caller's own functions, one after another, each on the whole row of one request.

    As ``logits_processors`` of other engines: ``f(token_ids, logits) -> logits``. What they return must be
    [vocabulary] numbers, none NaN or +inf, and not all -inf.
    """

    processors: tuple[Processor, ...]
    name: ClassVar[str] = "custom"
    kind: ClassVar[int] = NO_ENTRY
    values: ClassVar[tuple[float, ...]] = ()

    @property
    def is_off(self) -> bool:
        """Where there is none."""
        return not self.processors

    def memory(self, prompt: Sequence[int]) -> TokenMemory:
        """The tokens of prompt and output."""
        return TokenMemory(list(prompt))

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Call them with ``inputs.tokens`` as the tokens so far."""
        logits = np.full(row.vocabulary, -np.inf, np.float32)
        logits[row.ids] = row.logits
        logits = self.process(inputs.tokens.tolist(), logits)
        row.ids = np.flatnonzero(logits != -np.inf).astype(np.int32)  # NaN stays, and is no law
        row.logits = logits[row.ids]

    def process(self, token_ids: Sequence[int], logits: Float32Array) -> Float32Array:
        """[vocabulary] float32 what the functions make of a row, which is changed.

        Raises ``ParameterError`` where one returns anything else, and what they raise.
        """
        size = len(logits)
        for processor in self.processors:
            name = getattr(processor, "__name__", type(processor).__name__)
            try:
                made = processor(list(token_ids), logits)
            except StopIteration as error:  # which would end a caller's stream as if all were well
                raise RuntimeError(f"logits processor {name} raised StopIteration") from error
            except Exception as error:
                error.add_note(f"in logits processor {name}")
                raise
            if isinstance(made, np.ma.MaskedArray):
                made = made.filled(-np.inf)
            try:
                with np.errstate(over="ignore"):  # what is below float32 is banned, what is beyond it no law
                    logits = np.ascontiguousarray(made, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise ParameterError(
                    f"logits processor {name} must return {size} logits, not {type(made).__name__}"
                ) from error
            if np.shape(made) != (size,) or np.iscomplexobj(made):
                given = list(np.shape(made)) or type(made).__name__
                raise ParameterError(f"logits processor {name} must return {size} logits, not {given}")
        return logits


class TokenMemory:
    """All tokens of prompt and output."""

    __slots__ = ("ids",)

    values = None

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    @property
    def tokens(self) -> Any:
        """[m] all tokens, for the rule alone: not distinct."""
        return np.array(self.ids, np.int32)

    @property
    def amounts(self) -> Float32Array:
        """Nothing is added."""
        return NO_AMOUNTS

    def extend(self, token: int, facts: Facts) -> None:
        """Go on with a token."""
        self.ids.append(token)

    def precede(self, token: int) -> None:
        """Take in a token of the prompt."""
        self.ids.append(token)

    def fork(self) -> TokenMemory:
        """The same, going its own way."""
        return TokenMemory(self.ids.copy())
