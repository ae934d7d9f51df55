"""A plain NumPy decoder of any ``ModelSpec``: what its switches mean, over a whole sequence at once.

Tensors are float32 by the names that a backend knows them by (roles), matrices [outputs, inputs].

Sources: Vaswani et al. 2017 (attention); Zhang and Sennrich 2019 (RMS norm); Ba et al. 2016 (layer norm);
Su et al. 2021 (rotary embedding); Peng et al. 2023 (YaRN's factor); Ainslie et al. 2023 (grouped-query
attention); Shazeer 2020 (gated feed-forward); Hendrycks and Gimpel 2016 (GELU); Henry et al. 2020 (norms of
queries and keys); Wang and Komatsuzaki 2021 (parallel residual); Gemma Team 2024 (soft caps, norms after);
Kazemnejad et al. 2023 (layers without positions).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference.llama import softmax
from tests.reference.tiny import Weights, encode_weight
from unspool.model.spec import LayerSpec, ModelSpec, Rotary
from unspool.model.tensor import Tensor, TensorType

FloatArray = npt.NDArray[Any]
BIASED = ("query", "key", "value", "output", "gate", "up", "down")


@dataclass(frozen=True)
class Decoder:
    """Logits by definition.

    tensors: by role. A bias is added where its tensor is there.
    dtype: of the arithmetic. rounding: what keys and values [T, heads, head_dim] become in the cache.
    """

    spec: ModelSpec
    tensors: Mapping[str, npt.NDArray[np.float32]]
    dtype: npt.DTypeLike = np.float64
    rounding: Callable[[FloatArray], FloatArray] = lambda vectors: vectors

    def logits(self, tokens: npt.NDArray[np.int32]) -> FloatArray:
        """[T, vocab_size] what each of the tokens, from position 0 on, is followed by."""
        spec = self.spec
        x = self._tensor("embedding")[tokens] * spec.embedding_scale
        if spec.learned_positions:
            x = x + self._tensor("positions")[: len(tokens)]
        for i in range(spec.num_layers):
            x = self._layer(i, x)
        x = self._norm("final_norm", x)
        head = "embedding" if spec.tied_embeddings else "head"
        z = (x @ self._tensor(head).T + self._bias("head")) * spec.logit_scale
        return capped(z, spec.final_softcap)

    def _layer(self, i: int, x: FloatArray) -> FloatArray:
        spec, at = self.spec, f"layers.{i}."
        first, after = spec.norm_first, spec.norm_after
        h = self._norm(at + "attention_norm", x) if first else x
        attended = self._attention(at, spec.layer(i), h)
        attended = self._norm(at + "attention_post_norm", attended) if after else attended
        after_attention = x + spec.residual_scale * attended
        if not spec.parallel_residual:
            x = after_attention
            h = self._norm(at + "feed_forward_norm", x) if first else x
        fed = self._feed_forward(at, h)
        fed = self._norm(at + "feed_forward_post_norm", fed) if after else fed
        return after_attention + spec.residual_scale * fed

    def _attention(self, at: str, layer: LayerSpec, h: FloatArray) -> FloatArray:
        spec, length = self.spec, len(h)
        q, k, v = (self._product(at + role, h) for role in ("query", "key", "value"))
        q, k = self._query_key_norm(at + "query_norm", q), self._query_key_norm(at + "key_norm", k)
        q, k, v = (vectors.reshape(length, -1, spec.head_dim) for vectors in (q, k, v))
        if layer.rotary is not None:
            q, k = rotated(q, spec.rotaries[layer.rotary]), rotated(k, spec.rotaries[layer.rotary])
        k, v = self.rounding(k), self.rounding(v)
        group = spec.num_heads // spec.num_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * (spec.attention_scale or spec.head_dim**-0.5)
        scores = capped(scores, spec.attention_softcap)
        back = np.arange(length)[:, None] - np.arange(length)
        seen = (back >= 0) & (back < (layer.window or length))
        weights = softmax(np.where(seen, scores, -np.inf))
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(length, -1)
        return self._product(at + "output", mixed)

    def _feed_forward(self, at: str, h: FloatArray) -> FloatArray:
        act = ACTIVATIONS[self.spec.activation]
        up = self._product(at + "up", h)
        inner = act(self._product(at + "gate", h)) * up if self.spec.gated else act(up)
        return self._product(at + "down", inner)

    def _norm(self, role: str, x: FloatArray) -> FloatArray:
        if self.spec.norm == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        return self._root_mean_square(x) * self._tensor(role) + self._bias(role)

    def _query_key_norm(self, role: str, x: FloatArray) -> FloatArray:
        """Of [T, heads * head_dim]: head by head, of all as one, or none."""
        if self.spec.query_key_norm == "none":
            return x
        if self.spec.query_key_norm == "head":
            x = x.reshape(len(x), -1, self.spec.head_dim)
        return (self._root_mean_square(x) * self._tensor(role)).reshape(len(x), -1)

    def _root_mean_square(self, x: FloatArray) -> FloatArray:
        out: FloatArray = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.spec.norm_epsilon)
        return out

    def _product(self, role: str, x: FloatArray) -> FloatArray:
        out: FloatArray = x @ self._tensor(role).T + self._bias(role)
        return out

    def _tensor(self, role: str) -> FloatArray:
        return self.tensors[role].astype(self.dtype)

    def _bias(self, role: str) -> FloatArray:
        return self._tensor(role + "_bias") if role + "_bias" in self.tensors else np.zeros((), self.dtype)


def capped(x: FloatArray, cap: float) -> FloatArray:
    """``cap * tanh(x / cap)``; ``x`` where the cap is 0."""
    out: FloatArray = cap * np.tanh(x / cap) if cap else x
    return out


def rotated(vectors: FloatArray, rotary: Rotary) -> FloatArray:
    """Vectors [T, heads, head_dim] at positions 0 to T - 1, each pair turned by its angle at its position."""
    half = rotary.dim // 2
    angles = np.arange(len(vectors))[:, None, None] * np.array(rotary.inverse_frequencies)
    cos, sin = (rotary.factor * f(angles).astype(vectors.dtype) for f in (np.cos, np.sin))
    first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    if rotary.pairs == "halves":
        first, second = slice(0, half), slice(half, 2 * half)
    out = vectors.copy()
    out[..., first] = vectors[..., first] * cos - vectors[..., second] * sin
    out[..., second] = vectors[..., first] * sin + vectors[..., second] * cos
    return out


def silu(x: FloatArray) -> FloatArray:
    """``x / (1 + exp(-x))``."""
    out: FloatArray = x / (1 + np.exp(-x))
    return out


def gelu_tanh(x: FloatArray) -> FloatArray:
    """The approximation of ``gelu`` by a hyperbolic tangent."""
    out: FloatArray = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


def gelu(x: FloatArray) -> FloatArray:
    """x times the share of a normal distribution below x."""
    below = np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2, otypes=[x.dtype])(x)
    out: FloatArray = x * below
    return out


ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
}


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a spec asks for, by role, without biases."""
    h, f = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    found: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab_size, h), "final_norm": (h,)}
    if not spec.tied_embeddings:
        found["head"] = (spec.vocab_size, h)
    if spec.learned_positions:
        found["positions"] = (spec.learned_positions, h)
    layer: dict[str, tuple[int, ...]] = {
        "query": (q, h),
        "key": (kv, h),
        "value": (kv, h),
        "output": (h, q),
        "up": (f, h),
        "down": (h, f),
    }
    if spec.gated:
        layer["gate"] = (f, h)
    if spec.norm_first:
        layer["attention_norm"] = (h,)
    if spec.norm_first and not spec.parallel_residual:
        layer["feed_forward_norm"] = (h,)
    if spec.norm_after:
        layer |= {"attention_post_norm": (h,), "feed_forward_post_norm": (h,)}
    if spec.query_key_norm != "none":
        whole = spec.query_key_norm == "whole"
        layer |= {
            "query_norm": (q if whole else spec.head_dim,),
            "key_norm": (kv if whole else spec.head_dim,),
        }
    for i in range(spec.num_layers):
        found |= {f"layers.{i}.{role}": shape for role, shape in layer.items()}
    return found


def biases(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every bias that a model of this spec may have, by role."""
    found: dict[str, tuple[int, ...]] = {"head_bias": (spec.vocab_size,)}
    for role, shape in shapes(spec).items():
        name = role.rpartition(".")[2]
        if name in BIASED or (name.endswith("_norm") and name not in ("query_norm", "key_norm")):
            found[role + "_bias"] = shape[:1]
    return found


def draw(shapes_by_role: Mapping[str, tuple[int, ...]], std: float = 0.2) -> Weights:
    """Normal weights, those of norms around 1. A role's are the same whatever else a model has."""
    out = {}
    for role, shape in shapes_by_role.items():
        values = np.random.default_rng(zlib.crc32(role.encode())).normal(0.0, std, shape)
        out[role] = (values + role.endswith("norm")).astype(np.float32)
    return out


def as_tensors(
    weights: Mapping[str, npt.NDArray[np.float32]], type_: TensorType = TensorType.F32
) -> dict[str, Tensor]:
    """Weights as a loader would hand them to a backend: matrices in a type, the rest in float32."""
    out = {}
    for role, weight in weights.items():
        kept = type_ if weight.ndim == 2 and role != "positions" else TensorType.F32
        data = encode_weight(weight, kept).reshape(-1)
        rows = weight.shape[0] if weight.ndim == 2 else 1
        out[role] = Tensor(role, kept, rows, weight.shape[-1], data)
    return out
