"""A plain NumPy Llama behind the Backend protocol: what a step must compute, one token at a time.

Tokens are taken in order, each through every layer before the next, so that a token's ancestors
are complete when it looks at them. Every product has the same shape whatever shares the step,
so rows do not depend on the batch, the chunking or the order. Slots start as NaN: reading one that
was never written shows in the logits.

Sources: Touvron et al. 2023 (Llama); Zhang and Sennrich 2019 (RMSNorm); Su et al. 2021 (rotary
embedding, here on interleaved pairs (2i, 2i + 1)); Ainslie et al. 2023 (grouped-query attention);
Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unspool.backend.base import BLOCK_SIZE, Float32Array, Int32Array, StepBatch, StepOutput
from unspool.cache.size import CacheType
from unspool.errors import BackendError
from unspool.model.spec import ModelSpec, Rotary
from unspool.sampling.offers import Offers, offers
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import Law, laws, sample

FloatArray = npt.NDArray[Any]
Sampler = Callable[[Float32Array, SamplePlan], RowResults]


@dataclass
class ReferenceLogits:
    """Logits in NumPy's memory: ``numpy()`` is the array itself."""

    array: Float32Array

    def numpy(self) -> Float32Array:
        return self.array


def rms_norm(x: FloatArray, weight: FloatArray, epsilon: float) -> FloatArray:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last axis."""
    out: FloatArray = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
    return out


def rotate(heads: FloatArray, position: int, rotary: Rotary | None) -> FloatArray:
    """Rotate pairs (2i, 2i + 1) of heads [H, head_dim] by ``position * inverse_frequencies[i]``."""
    if rotary is None:
        return heads
    rope_dim = rotary.dim
    angle = position * np.array(rotary.inverse_frequencies)
    cos, sin = np.cos(angle).astype(heads.dtype), np.sin(angle).astype(heads.dtype)
    even, odd = heads[:, 0:rope_dim:2], heads[:, 1:rope_dim:2]
    out = heads.copy()
    out[:, 0:rope_dim:2] = even * cos - odd * sin
    out[:, 1:rope_dim:2] = even * sin + odd * cos
    return out


def softmax(scores: FloatArray) -> FloatArray:
    """Softmax over the last axis."""
    w = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: FloatArray = w / w.sum(axis=-1, keepdims=True)
    return out


def round_to_int8(x: FloatArray) -> FloatArray:
    """The nearest multiples of max |x| / 127 in each group of 32 of a row."""
    groups = x.reshape(-1, 32)
    scale = np.abs(groups).max(axis=1, keepdims=True) / 127
    codes = np.rint(groups / np.where(scale > 0, scale, 1))
    out: FloatArray = (codes * scale).reshape(x.shape)
    return out


def round_to_bfloat(x: FloatArray) -> FloatArray:
    """The nearest bfloat16, ties to even."""
    word = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (word + 0x7FFF + (word >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(x.dtype)


def round_vectors_to_int8(x: FloatArray) -> FloatArray:
    """Codes in -127..127 times the float16 nearest to max |x| / 127 of each vector."""
    scale = (np.abs(x).max(axis=-1, keepdims=True) / 127).astype(np.float16).astype(x.dtype)
    codes = np.clip(np.rint(x / np.where(scale > 0, scale, 1)), -127, 127)
    out: FloatArray = codes * scale
    return out


ROUNDINGS: dict[CacheType, Callable[[FloatArray], FloatArray]] = {
    "float16": lambda x: x.astype(np.float16).astype(x.dtype),
    "bfloat16": round_to_bfloat,
    "float32": lambda x: x.astype(np.float32).astype(x.dtype),
    "int8": round_vectors_to_int8,
}
"""What each type of the cache makes of keys and values."""


class ReferenceBackend:
    """The Backend protocol in NumPy.

    weights: GGUF name -> matrix [outputs, inputs] or vector, as ``tests.reference.tiny`` makes them.
    dtype: of the arithmetic. cache_dtype: of the stored keys and values (default: ``dtype``).
    rounding: what keys and values [heads, head_dim] become when they are stored, instead (see ``ROUNDINGS``).
    sampler: ``(rows, plan) -> RowResults``.
    int8_activations: whether matrices read their inputs rounded to int8 in groups of 32,
        the values' matrix adding what that rounds away, rounded in turn.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, npt.NDArray[np.float32]],
        *,
        dtype: npt.DTypeLike = np.float64,
        cache_dtype: npt.DTypeLike | None = None,
        rounding: Callable[[FloatArray], FloatArray] | None = None,
        max_step_tokens: int = 256,
        sampler: Sampler = sample,
        int8_activations: bool = False,
    ) -> None:
        self.spec = spec
        self.max_step_tokens = max_step_tokens
        self.dtype = np.dtype(dtype)
        self.cache_dtype = np.dtype(dtype if cache_dtype is None else cache_dtype)
        self.weights = {name: np.asarray(w, dtype=self.dtype) for name, w in weights.items()}
        self.cache_type: CacheType = "float32"
        self.sampler = sampler
        self.rounding = rounding or (lambda vectors: vectors)
        self.int8_activations = int8_activations
        self.keys: FloatArray = np.zeros((0,))
        self.values: FloatArray = np.zeros((0,))

    def allocate(self, num_blocks: int) -> None:
        spec = self.spec
        shape = (spec.num_layers, num_blocks * BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
        self.keys = np.full(shape, np.nan, dtype=self.cache_dtype)
        self.values = np.full(shape, np.nan, dtype=self.cache_dtype)

    def forward(self, step: StepBatch) -> StepOutput:
        self._check(step)
        spec, norm = self.spec, self.weights["output_norm.weight"]
        residuals = np.empty((len(step.tokens), spec.num_layers, spec.hidden_size), dtype=self.dtype)
        for run in range(len(step.context_lens)):
            for t in range(step.run_starts[run], step.run_starts[run + 1]):
                residuals[t] = self._token(step, t, self._visible_slots(step, run, t))
        states = rms_norm(residuals, norm, spec.norm_epsilon)
        head = "token_embd.weight" if spec.tied_embeddings else "output.weight"
        logits = np.empty((len(step.rows), spec.vocab_size), dtype=np.float32)
        for r, t in enumerate(step.rows):
            exit_ = spec.num_layers if step.exits is None else step.exits[r]
            logits[r] = self._product(head, states[t, exit_ - 1])
        logits.flags.writeable = False
        return StepOutput(ReferenceLogits(logits), states[step.hidden_rows, -1].astype(np.float32))

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        return self.sampler(output.logits.numpy(), plan)

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        return laws(output.logits.numpy(), plan)

    def offers(
        self,
        output: StepOutput,
        plan: SamplePlan,
        count: int,
        *,
        perturbed: bool = False,
        log_rows: bool = False,
    ) -> Offers:
        return offers(output.logits.numpy(), plan, count, perturbed=perturbed, log_rows=log_rows)

    def copy_slots(self, pairs: Int32Array) -> None:
        for source, target in pairs:
            self.keys[:, target] = self.keys[:, source]
            self.values[:, target] = self.values[:, source]

    def _visible_slots(self, step: StepBatch, run: int, t: int) -> Int32Array:
        """Slots that token ``t`` attends to, in logical order: cached context, ancestors, itself."""
        at = np.arange(step.context_lens[run])
        context = step.block_table[run, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
        path = []
        while t >= 0:
            path.append(step.slots[t])
            t = int(step.parents[t])
        return np.concatenate([context, np.array(path[::-1])]).astype(np.int32)

    def _token(self, step: StepBatch, t: int, visible: Int32Array) -> FloatArray:
        """Run one token through every layer, writing its keys and values.

        Returns the residuals, [num_layers, hidden_size].
        """
        w, spec = self.weights, self.spec
        residuals = np.empty((spec.num_layers, spec.hidden_size), dtype=self.dtype)
        x = w["token_embd.weight"][step.tokens[t]]
        for layer in range(spec.num_layers):
            name = f"blk.{layer}."
            h = rms_norm(x, w[name + "attn_norm.weight"], spec.norm_epsilon)
            x = x + self._attention(layer, h, int(step.positions[t]), visible)
            h = rms_norm(x, w[name + "ffn_norm.weight"], spec.norm_epsilon)
            gate = self._product(name + "ffn_gate.weight", h)
            up = self._product(name + "ffn_up.weight", h)
            x = x + self._product(name + "ffn_down.weight", gate / (1 + np.exp(-gate)) * up)
            residuals[layer] = x
        return residuals

    def _attention(self, layer: int, h: FloatArray, position: int, visible: Int32Array) -> FloatArray:
        """Attention of one token, whose own slot is the last of ``visible``."""
        name, slot = f"blk.{layer}.", visible[-1]
        spec = self.spec
        q = self._product(name + "attn_q.weight", h).reshape(spec.num_heads, spec.head_dim)
        k = self._product(name + "attn_k.weight", h).reshape(spec.num_kv_heads, spec.head_dim)
        v = self._product(name + "attn_v.weight", h).reshape(spec.num_kv_heads, spec.head_dim)
        index, window = spec.layer(layer).rotary, spec.layer(layer).window
        rotary = None if index is None else spec.rotaries[index]
        q = rotate(q, position, rotary)
        self.keys[layer, slot] = self.rounding(rotate(k, position, rotary))
        self.values[layer, slot] = self.rounding(v)
        visible = visible[-window:]
        keys = self.keys[layer, visible].astype(self.dtype)
        values = self.values[layer, visible].astype(self.dtype)
        grouped = q.reshape(spec.num_kv_heads, -1, spec.head_dim)
        scores = np.einsum("ghd,tgd->ght", grouped, keys) * (spec.attention_scale or spec.head_dim**-0.5)
        if cap := spec.attention_softcap:
            scores = cap * np.tanh(scores / cap)
        p = softmax(scores)
        mixed = np.einsum("ght,tgd->ghd", p, values)
        return self._product(name + "attn_output.weight", mixed.reshape(-1))

    def _product(self, name: str, x: FloatArray) -> FloatArray:
        """A weight times a row of activations, rounded to int8 first where this backend does so."""
        if self.int8_activations:
            rounded = round_to_int8(x)
            x = rounded + round_to_int8(x - rounded) if "attn_v" in name else rounded
        out: FloatArray = self.weights[name] @ x
        return out

    def _check(self, step: StepBatch) -> None:
        """Refuse a malformed step, as every backend must."""
        total, runs, slots = len(step.tokens), len(step.context_lens), self.keys.shape[1]
        exits = np.full(len(step.rows), self.spec.num_layers) if step.exits is None else step.exits
        for name, array in vars(step).items():
            if name == "exits" and array is None:
                continue
            if array.dtype != np.int32 or not array.flags.c_contiguous:
                raise BackendError(f"{name} must be C-contiguous int32, not {array.dtype}")
        lengths = (len(step.positions), len(step.slots), len(step.parents))
        ok = total <= self.max_step_tokens and lengths == (total,) * 3
        ok = ok and len(step.run_starts) == runs + 1 == len(step.block_table) + 1
        ok = ok and step.run_starts[0] == 0 and step.run_starts[-1] == total
        ok = ok and bool(np.all(np.diff(step.run_starts) > 0))
        ok = ok and bool(np.all((step.tokens >= 0) & (step.tokens < self.spec.vocab_size)))
        ok = ok and bool(np.all((step.slots >= 0) & (step.slots < slots)))
        ok = ok and len(set(step.slots.tolist())) == total
        ok = ok and len(exits) == len(step.rows)
        ok = ok and bool(np.all((exits >= 1) & (exits <= self.spec.num_layers)))
        if not ok:
            raise BackendError(f"malformed step of {total} tokens in {runs} runs")
        for run in range(runs):
            for t in range(step.run_starts[run], step.run_starts[run + 1]):
                parent = int(step.parents[t])
                inside = parent == -1 or step.run_starts[run] <= parent < t
                before = step.context_lens[run] - 1 if parent == -1 else step.positions[parent]
                if not inside or step.positions[t] != before + 1:
                    raise BackendError(f"token {t} of the step does not follow its parent {parent}")
