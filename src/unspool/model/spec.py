"""The sizes and switches of a decoder-only model: all that a backend needs beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unspool.cache.size import CacheType, vector_bytes


@dataclass(frozen=True)
class Rotary:
    """A rotary position embedding: how far each pair of a head's dimensions turns with each position.

    Source: Su et al. 2021, https://arxiv.org/abs/2104.09864.
    """

    pairs: Literal["interleaved", "halves"]
    """Pair i is dimensions ``(2i, 2i + 1)``, or ``(i, i + dim / 2)``."""
    inverse_frequencies: tuple[float, ...]
    """[dim / 2] angle of each pair at position 1, in float32, scaled as the model's context was."""
    factor: float = 1.0
    """Cosines and sines are multiplied by it (YaRN, longrope)."""

    @property
    def dim(self) -> int:
        """How many of a head's dimensions are rotated, the first ones; the rest pass through."""
        return 2 * len(self.inverse_frequencies)


def inverse_frequencies(dim: int, theta: float) -> tuple[float, ...]:
    """``theta^(-2i / dim)`` in float32 for the ``dim / 2`` pairs of a rotary embedding that is not scaled."""
    powers = np.float64(theta) ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    return tuple(powers.astype(np.float32).tolist())


@dataclass(frozen=True)
class LayerSpec:
    """What differs between a model's layers."""

    window: int = 0
    """A token attends to this many positions, the last ones, its own included; 0: to all."""
    rotary: int | None = 0
    """Which of ``ModelSpec.rotaries``; None: queries and keys are not rotated."""


@dataclass(frozen=True)
class ModelSpec:
    """A model's architecture, as its file states it. Sizes are counts of elements.

    A layer is ``x += residual_scale * after(attention(first(x)))``, then the same of the feed-forward, where
    ``first`` and ``after`` are norms or nothing.
    """

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
    tied_embeddings: bool
    """Whether the head is the embedding table."""
    rotaries: tuple[Rotary, ...] = ()
    layers: tuple[LayerSpec, ...] = ()
    """[num_layers], or none: all as by default."""
    norm: Literal["rms", "layer"] = "rms"
    norm_first: bool = True
    """Attention and feed-forward read a norm of the residual."""
    norm_after: bool = False
    """What they give is normalized before it is added to the residual."""
    query_key_norm: Literal["none", "head", "whole"] = "none"
    """RMS norms of queries and keys before they are rotated: of each head, or of all heads' values as one."""
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    gated: bool = True
    """The feed-forward is ``down(activation(gate(x)) * up(x))``, or else ``down(activation(up(x)))``."""
    learned_positions: int = 0
    """Rows of the tensor ``positions``, which are added to the embeddings; 0: there is none."""
    parallel_residual: bool = False
    """Attention and feed-forward read one norm of one residual, and are both added to it."""
    attention_scale: float = 0.0
    """Queries are multiplied by it; 0: ``head_dim ** -0.5``."""
    attention_softcap: float = 0.0
    """Scores become ``cap * tanh(scores / cap)``; 0: off."""
    final_softcap: float = 0.0
    """The same of logits, after ``logit_scale``."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """What attention and feed-forward give is multiplied by it."""
    logit_scale: float = 1.0
    """Logits are multiplied by it."""

    def layer(self, index: int) -> LayerSpec:
        """Layer ``index``, as stated or by default."""
        return self.layers[index] if self.layers else LayerSpec()

    def cache_bytes_per_token(self, cache_type: CacheType = "float16") -> int:
        """Bytes of keys and values that one token takes: 2 * layers * kv_heads vectors of head_dim."""
        return 2 * self.num_layers * self.num_kv_heads * vector_bytes(self.head_dim, cache_type)
