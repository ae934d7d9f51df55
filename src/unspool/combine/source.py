"""How a branch's rows become the one row that its chain sees: plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unspool.errors import ParameterError

MAIN = "main"
"""The name of an engine's own backend."""

Float32Array = npt.NDArray[np.float32]
Combine = Callable[[Float32Array], Float32Array]
"""[k, vocab_size] rows, tracks in order and each track's exits in order, to the one [vocab_size] row."""


@dataclass(frozen=True)
class TrackSpec:
    """One of the ways that a branch's tokens run: after a prefix of its own, through a backend."""

    prefix: Sequence[int]
    """Token ids before the generated ones; the first track's is the prompt."""
    backend: str = MAIN
    exits: tuple[int, ...] | None = None
    """After how many layers rows are taken, each 1 to the backend's num_layers. None: after the last."""

    @property
    def rows(self) -> int:
        """How many rows it gives for one token."""
        return 1 if self.exits is None else len(self.exits)


@dataclass(frozen=True)
class Source:
    """The tracks of a branch, and how their rows are combined.

    The combined row is what the rules see and what raw figures are of.
    """

    tracks: tuple[TrackSpec, ...]
    combine: Combine


@dataclass(frozen=True)
class LinearCombination:
    """sum_k weights[k] * rows[k], in float32 and in order.

    Classifier-free guidance of scale g over a conditional and an unconditional track is
    u + g (c - u): weights (g, 1 - g) (Sanchez et al. 2023, eq. 7).
    """

    weights: tuple[float, ...]

    def __call__(self, rows: Float32Array) -> Float32Array:
        """[k, vocab_size] to [vocab_size]. Raises ``ParameterError`` for another number of rows."""
        if len(rows) != len(self.weights):
            raise ParameterError(f"{len(self.weights)} weights cannot combine {len(rows)} rows")
        combined = np.zeros(rows.shape[1], np.float32)
        for row, weight in zip(rows, self.weights, strict=True):
            combined += row * np.float32(weight)
        return combined
