"""Noise as a function of what is drawn, not a stream: the same request draws the same tokens anywhere.

Every number comes from Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", 2011), a bijection of 128-bit counters under a 64-bit key, so that neither the batch nor
the number of earlier draws has a part in it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

UInt32Array = npt.NDArray[np.uint32]
Float64Array = npt.NDArray[np.float64]

TAIL_BITS = 1 << 12
"""Below this the 32 bits of a token are continued by 32 more."""


class Purpose(IntEnum):
    """What bits are drawn for: a counter word, so that no two purposes share bits."""

    TOKEN = 0
    TAIL = 1
    COIN = 2
    ACCEPTANCE = 3
    RESIDUAL = 4
    DRAFT = 5


def philox(counter: npt.ArrayLike, key: int) -> UInt32Array:
    """Philox4x32-10: the block of 128 random bits of each counter.

    Parameters
    ----------
    counter : [..., 4] unsigned integers below 2**32
    key : 0 to 2**64 - 1; its low word is the first key word

    Returns
    -------
    [..., 4] uint32
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    low = np.uint64(0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def mix(seed: int, lane: int = 0) -> int:
    """The noise key of a branch: two rounds of SplitMix64 (Steele, Lea and Flood, 2014).

    ``seed`` is a request's, ``lane`` is 0 or a hash of the branch's generated tokens; both are 0 to
    2**64 - 1, and so is the key. For a given lane distinct seeds give distinct keys.
    """
    return _scramble(_scramble(seed) ^ lane)


def _scramble(x: int) -> int:
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def token_bits(
    key: int, tokens: npt.NDArray[np.int32], position: int, sample_index: int, purpose: Purpose
) -> UInt32Array:
    """[n] 32 random bits of each of n tokens: word ``token & 3`` of the block of ``token >> 2``."""
    counters = np.empty((len(tokens), 4), np.uint64)
    counters[:, 0] = tokens >> 2
    counters[:, 1:] = (position, sample_index, purpose)
    bits: UInt32Array = philox(counters, key)[np.arange(len(tokens)), tokens & 3]
    return bits


def exponentials(
    key: int, tokens: npt.NDArray[np.int32], position: int, sample_index: int
) -> npt.NDArray[np.float64]:
    """[n] the exponential variable of each of n tokens at one position of one sample.

    Parameters
    ----------
    key : noise key, ``mix(seed, lane)``
    tokens : [n] token ids
    position : absolute position of the token to be drawn, 0 to 2**31 - 1
    sample_index : which of a request's samples draws, 0 to 2**31 - 1
    """
    bits = token_bits(key, tokens, position, sample_index, Purpose.TOKEN)
    tail = token_bits(key, tokens, position, sample_index, Purpose.TAIL)
    return exponentials_of_bits(bits, tail)


def exponentials_of_bits(bits: UInt32Array, tail: UInt32Array) -> Float64Array:
    """E = -log(1 - v), exponential with mean 1 where v is uniform on (0, 1).

    v = (bits + 1/2) / 2**32, and where bits < 2**12, v = (2**32 bits + tail + 1/2) / 2**64: so thin a
    tail that tokens with a probability of 1e-9 and far below are drawn as often as they should be.
    Both forms are exact in double precision, and so is 1 - v in the first. In the second, v < 2**-20,
    three terms of the series are.
    """
    body = -natural_log(1.0 - (bits.astype(np.float64) + 0.5) * 2.0**-32)
    v = ((bits.astype(np.uint64) << np.uint64(32) | tail).astype(np.float64) + 0.5) * 2.0**-64
    return np.where(bits >= TAIL_BITS, body, v + v * v * (0.5 + v * (1.0 / 3.0)))


def natural_log(x: npt.NDArray[np.float64] | float) -> Float64Array:
    """Natural logarithm of positive normal doubles, with a relative error below 2**-52.

    fdlibm's ``e_log.c`` (Sun Microsystems, 1993), in operations that IEEE 754 rounds exactly: the native
    sampler gives the same bits, and no C library has a say in which token is drawn.
    """
    word = np.asarray(x, np.float64).view(np.int64)
    exponent = (word - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    # x = 2**exponent * (1 + f), with 1 + f in [sqrt(1/2), sqrt(2))
    f = (word - (exponent << np.int64(52))).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = np.full_like(z, 1.479819860511658591e-01)
    for coefficient in (
        1.531383769920937332e-01,
        1.818357216161805012e-01,
        2.222219843214978396e-01,
        2.857142874366239149e-01,
        3.999999999940941908e-01,
        6.666666666666735130e-01,
    ):
        r = r * z + coefficient
    r = r * z
    half_square = 0.5 * f * f
    high = exponent * 6.93147180369123816490e-01
    low = exponent * 1.90821492927058770002e-10
    result: Float64Array = high - ((half_square - (s * (half_square + r) + low)) - f)
    return result
