"""The plausibility constraint: tokens that the better model finds too improbable are left out."""

from __future__ import annotations

import math

import numpy as np

from unspool.engine.source import Float32Array


def implausible(row: Float32Array, alpha: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[vocab_size] whether p < alpha * (largest p), p being the softmax of ``row`` (Li et al. 2022, eq. 2)."""
    if alpha == 0:
        return np.zeros(len(row), np.bool_)
    return row < row.max() + np.float32(math.log(alpha))


def log_softmax(row: Float32Array) -> Float32Array:
    """[vocab_size] log-probabilities, summed in float64."""
    below = row - row.max()
    return below - np.float32(np.log(np.exp(below).sum(dtype=np.float64)))
