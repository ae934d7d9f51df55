"""What a cache takes: bytes for a model's shape, and slots that a length leaves empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from unspool.cache.pool import BLOCK_SIZE, blocks_for_tokens
from unspool.errors import ParameterError, shown

MOST = 1 << 31
"""No size is larger than this."""


def _check(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ParameterError(f"{name} must be a whole number from 1 to {MOST}, not {shown(value)}")


@dataclass(frozen=True)
class CacheShape:
    """What a token's keys and values are made of: in each layer, ``kv_heads`` vectors of each.

    Raises ``ParameterError`` for a count that is not a whole number from 1 to 2^31.
    """

    layers: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim"):
            _check(name, getattr(self, name))


SHAPES = {
    "llama-2-7b": CacheShape(32, 32, 128),
    "llama-2-70b": CacheShape(80, 8, 128),
    "llama-3-8b": CacheShape(32, 8, 128),
    "llama-3-70b": CacheShape(80, 8, 128),
    "llama-3.1-405b": CacheShape(126, 8, 128),
    "llama-3.2-1b": CacheShape(16, 8, 64),
    "llama-3.2-3b": CacheShape(28, 8, 128),
    "mistral-7b": CacheShape(32, 8, 128),
    "qwen2.5-0.5b": CacheShape(24, 2, 64),
    "qwen2.5-7b": CacheShape(28, 4, 128),
    "qwen2.5-72b": CacheShape(80, 8, 128),
    "smollm2-135m": CacheShape(30, 3, 64),
    "smollm2-1.7b": CacheShape(24, 32, 64),
}
"""Models that people size caches for, as their configurations state them."""

CacheType = Literal["float16", "bfloat16", "float32", "int8"]
"""What keys and values are kept in. ``int8``: codes times a float16 scale for each token and head."""

CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)

_BYTES = {"float16": (2, 0), "bfloat16": (2, 0), "float32": (4, 0), "int8": (1, 2)}
"""Of an element, and of what stands beside each vector."""


def check_cache_type(value: object) -> CacheType:
    """``value``, where it is a type of the cache. Raises ``ParameterError``."""
    for known in CACHE_TYPES:
        if isinstance(value, str) and value == known:
            return known
    raise ParameterError(f"cache_type must be one of {', '.join(CACHE_TYPES)}, not {shown(value)}")


def vector_bytes(head_dim: int, cache_type: CacheType = "float16") -> int:
    """Bytes of one token's key, or value, of one head."""
    element, scale = _BYTES[check_cache_type(cache_type)]
    return element * head_dim + scale


def cache_bytes(shape: CacheShape, tokens: int, batch: int = 1, cache_type: CacheType = "float16") -> int:
    """Bytes of keys and values: 2 * layers * kv_heads * tokens * batch * (head_dim * element + scale).

    shape: the model's.
    tokens: cached by each sequence, at least 1.
    batch: sequences, at least 1, each with a cache of its own.
    cache_type: an element's bytes; int8 has a scale of 2 bytes beside each vector.

    Raises ``ParameterError`` for a size out of range, or another type.
    """
    _check("tokens", tokens)
    _check("batch", batch)
    vectors = 2 * shape.layers * shape.kv_heads * tokens * batch
    return vectors * vector_bytes(shape.head_dim, cache_type)


def paged_waste(tokens: int) -> float:
    """The share of a sequence's block slots that holds no token: the empty slots of its last block.

    tokens: the sequence's length, at least 1. Raises ``ParameterError`` for less.
    """
    _check("tokens", tokens)
    slots = blocks_for_tokens(tokens) * BLOCK_SIZE
    return (slots - tokens) / slots


def buffer_waste(tokens: int, buffer: int) -> float:
    """The share of one contiguous ``buffer``, in tokens, that a sequence of ``tokens`` leaves empty.

    tokens: from 1 to ``buffer``. Raises ``ParameterError`` for another length.
    """
    _check("tokens", tokens)
    _check("buffer", buffer)
    if tokens > buffer:
        raise ParameterError(f"a sequence of {tokens} tokens does not fit in a buffer of {buffer}")
    return (buffer - tokens) / buffer
