"""The sizes and switches of a decoder-only model: all that a backend needs beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass


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

    def cache_bytes_per_token(self, bytes_per_element: int = 2) -> int:
        """Bytes of keys and values that one token takes: 2 * layers * kv_heads * head_dim * element."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element
