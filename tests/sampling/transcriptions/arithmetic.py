"""Softmax and counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
SURPRISE = 1.0
"""What the tests say of every drawn token to rules that learn from it, in nats."""
Probabilities = npt.NDArray[np.float64]


def softmax(z: Row) -> Probabilities:
    """[n] probabilities of logits, of which -inf has none."""
    e = np.exp(z.astype(np.float64) - float(z.max()))
    return np.asarray(e / e.sum())


def counts(tokens: Sequence[int], vocabulary: int) -> npt.NDArray[np.int64]:
    """[vocabulary] how often each token is there."""
    return np.bincount(np.array(tokens, np.int64), minlength=vocabulary)


def scaled(z: Row, penalty: float, seen: npt.NDArray[np.bool_]) -> Row:
    """Logits of seen tokens divided by the penalty where positive, multiplied by it where not."""
    r = np.float32(penalty)
    return np.where(seen, np.where(z > 0, z / r, z * r), z)


def one_hot(z: Row) -> Probabilities:
    """All on the first of the largest."""
    p = np.zeros(len(z))
    p[int(np.argmax(z))] = 1
    return p


def on(value: float | None, off: float) -> float:
    """A setting, or what it is where it is off."""
    return off if value is None else value
