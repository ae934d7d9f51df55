"""The sizes and switches of a decoder-only model: all that a backend needs beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass

from unspool.cache.size import CacheType, vector_bytes


@dataclass(frozen=True)
class LayerSpec:
    """What differs between a model's layers."""

    window: int = 0
    """A token attends to this many positions, the last ones, its own included; 0: to all."""


@dataclass(frozen=True)
class ModelSpec:
    """A model's architecture, as its file states it. Sizes are counts of elements."""

    architecture: str
    """The file's own name of the family, such as ``llama``."""
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    """The longest sequence that the model was made for, in tokens."""
    norm_epsilon: float
    rope_theta: float
    rope_dim: int
    """How many of each head's dimensions are rotated, in interleaved pairs; the rest pass through."""
    tied_embeddings: bool
    """Whether the head is the embedding table."""
    layers: tuple[LayerSpec, ...] = ()
    """[num_layers], or none: all as by default."""
    attention_scale: float = 0.0
    """Queries are multiplied by it; 0: ``head_dim ** -0.5``."""
    attention_softcap: float = 0.0
    """Scores become ``cap * tanh(scores / cap)``; 0: off."""

    def cache_bytes_per_token(self, cache_type: CacheType = "float16") -> int:
        """Bytes of keys and values that one token takes: 2 * layers * kv_heads vectors of head_dim."""
        return 2 * self.num_layers * self.num_kv_heads * vector_bytes(self.head_dim, cache_type)
