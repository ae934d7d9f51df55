"""The plausibility constraint: tokens that the better model finds too improbable are left out."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from unspool.combine.source import Float32Array


def implausible(row: Float32Array, alpha: float) -> npt.NDArray[np.bool_]:
    """[vocab_size] whether p < alpha * (largest p), p = softmax(row) (Li et al. 2022, eq. 2)."""
    least = -math.inf if alpha == 0 else float(row.max()) + math.log(alpha)
    unlikely: npt.NDArray[np.bool_] = row < least
    return unlikely


def log_softmax(row: Float32Array) -> Float32Array:
    """[vocab_size] log-probabilities, summed in float64."""
    below = row - row.max()
    logarithms: Float32Array = below - np.float32(np.log(np.exp(below).sum(dtype=np.float64)))
    return logarithms
