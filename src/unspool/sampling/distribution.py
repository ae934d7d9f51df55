"""The law that a token is drawn from: fixed-point masses of a row's candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unspool.sampling.noise import natural_log

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

UNIT = 2**40
"""The mass of the most probable candidate."""


def exp(x: Float32Array) -> Float32Array:
    """e**x in float32 for x <= 88, relative error below 2e-7; 0 below -87, NaN for NaN.

    The project's one exponential, in separate multiplications and additions: bit for bit the twin of
    ``native/simd/exp.h``. x = n log 2 + r with abs(r) <= log(2) / 2, Cephes' polynomial of degree 7 in
    r (its ``expf``) by Estrin's scheme, and n added to the exponent's bits.
    """
    f32 = np.float32
    clamped = np.maximum(np.minimum(np.where(np.isnan(x), f32(0), x), f32(88)), f32(-87))
    n = np.rint(clamped * f32(1.44269504088896341))
    r = (clamped - n * f32(0.693359375)) - n * f32(-2.12194440e-4)
    square = r * r
    high = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
    middle = f32(8.3334519073e-3) * r + f32(4.1665795894e-2)
    low = f32(1.6666665459e-1) * r + f32(5.0000001201e-1)
    p = (high * square + middle) * square + low
    p = p * square + (r + f32(1))
    scaled = (p.view(np.int32) + (n.astype(np.int32) << np.int32(23))).view(np.float32)
    result: Float32Array = np.where(np.isnan(x), x, np.where(x < f32(-87), f32(0), scaled))
    return result


def masses(logits: Float32Array) -> Int64Array:
    """[n] int64 ``round(2**40 * exp(z - max z))`` of n logits, of which the largest is finite.

    Integers, so that a sum does not depend on its order; below 2**62 for up to 2**22 logits.
    """
    return fixed_point(exp(below_max(logits)))


def below_max(logits: Float32Array) -> Float32Array:
    """[n] ``z - max z`` in float32; -inf where the difference is beyond it."""
    with np.errstate(over="ignore"):
        difference: Float32Array = logits - logits.max()
    return difference


def fixed_point(x: Float32Array) -> Int64Array:
    """``round(2**40 * x)``, ties to even."""
    fixed: Int64Array = np.rint(x.astype(np.float64) * UNIT).astype(np.int64)
    return fixed


@dataclass(frozen=True)
class Distribution:
    """A law over candidates: ascending token ids and their masses."""

    ids: npt.NDArray[np.int32]
    """[n] token ids, ascending."""
    logits: Float32Array
    """[n] the logits that the law is the softmax of; the largest is finite."""
    weights: Int64Array
    """[n] fixed-point masses: 2**40 for the most probable, 0 for what is less than 4.5e-13 of that."""

    @classmethod
    def of(cls, ids: npt.NDArray[np.int32], logits: Float32Array) -> Distribution:
        """The softmax of ``logits``; at least one must be finite, none NaN or +inf."""
        return cls(ids, logits, masses(logits))

    @property
    def total(self) -> int:
        """W, the sum of the weights."""
        return int(self.weights.sum())

    @property
    def probabilities(self) -> Float64Array:
        """[n] weights / W."""
        probabilities: Float64Array = self.weights / float(self.total)
        return probabilities

    @property
    def log_probabilities(self) -> Float64Array:
        """[n] (z - max z) - log(W / 2**40): from the logits, so that thin tails keep their digits."""
        return below_max(self.logits).astype(np.float64) - self.log_total

    @property
    def moments(self) -> Int64Array:
        """[n] ``round(2**40 * d * exp(-d))`` with d = max z - z: what each adds to the mean of d."""
        x = below_max(self.logits)
        e = exp(x)
        # Where e is 0, d may be infinite; the product's limit is 0.
        return fixed_point(np.multiply(-x, e, where=e > 0, out=np.zeros_like(e)))

    @property
    def mean_depth(self) -> float:
        """The mean of d = max z - z under the law: sum of moments / W."""
        return float(self.moments.sum()) / float(self.total)

    @property
    def log_total(self) -> float:
        """log(W / 2**40): minus the log-probability of the most probable candidate."""
        return float(natural_log(self.total * 2.0**-40))

    @property
    def entropy(self) -> float:
        """H in nats: log(W / 2**40) + mean d, in fixed point."""
        return self.log_total + self.mean_depth
