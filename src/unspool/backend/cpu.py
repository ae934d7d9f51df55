"""The native CPU backend: one call a step, on every core, from packed weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unspool import _native
from unspool.backend.base import Float32Array, Int32Array, StepBatch, StepOutput
from unspool.backend.threads import shared_pool
from unspool.cache.size import CacheType, check_cache_type
from unspool.errors import BackendError
from unspool.model.spec import ModelSpec
from unspool.model.tensor import Tensor
from unspool.sampling.offers import Offers
from unspool.sampling.plan import RowResults, RowStatus, SamplePlan
from unspool.sampling.sampler import Law

INSTRUCTION_SET_VARIABLE = "UNSPOOL_INSTRUCTION_SET"
"""Environment variable that picks the kernels where the caller does not; ``auto`` is the best there is."""


@dataclass
class _Logits:
    """Logits in the decoder's memory."""

    decoder: _native.Decoder

    def numpy(self) -> Float32Array:
        """[R, vocab_size] view, read-only. What it holds changes with the next forward."""
        return self.decoder.logits()


class CpuBackend:
    """Computes steps with the project's own kernels.

    Args:
        spec: the model's sizes.
        tensors: by role, as ``unspool.model`` names them. Weights are repacked; only an embedding table that
            is not also the head is read from its tensor afterwards.
        threads: default the physical cores that this process may use. A row's bits do not depend on it.
        instruction_set: ``auto`` or one of ``unspool._native.instruction_sets()``. A row's bits do not depend
            on it either.
        max_step_tokens: the most tokens that one step may hold.
        cache_type: what keys and values are kept in: ``float16``, ``bfloat16``, ``float32``, or ``int8``,
            with a scale for each token and head, which takes half of float16.

    Raises:
        BackendError: a tensor is missing, damaged, of the wrong shape or of a type without kernels; the
            instruction set is not available; there is no memory.
        ParameterError: ``threads`` is out of range, or ``cache_type`` none of the four.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Tensor],
        *,
        threads: int | None = None,
        instruction_set: str | None = None,
        max_step_tokens: int = 512,
        cache_type: CacheType = "float16",
    ) -> None:
        self.spec = spec
        self.cache_type: CacheType = check_cache_type(cache_type)
        self.max_step_tokens = max_step_tokens
        self.num_blocks = 0
        try:
            self._pool = shared_pool(threads)
        except RuntimeError as error:
            raise BackendError(f"the system starts no more threads ({error}); ask for fewer") from error
        instruction_set = instruction_set or os.environ.get(INSTRUCTION_SET_VARIABLE) or "auto"
        raw = {role: (int(t.type), t.rows, t.columns, t.data) for role, t in tensors.items()}
        try:
            self._decoder = _native.Decoder(
                self._pool, instruction_set, max_step_tokens, self.cache_type, _native_spec(spec), raw
            )
        except ValueError as error:
            raise BackendError(str(error)) from error
        except MemoryError as error:
            raise BackendError("there is not enough memory for the model's weights") from error
        self.instruction_set = self._decoder.instruction_set
        """The kernels in use."""

    @property
    def threads(self) -> int:
        """Threads that compute a step, the caller's included."""
        return self._pool.threads

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights: what a step of one token reads."""
        return self._decoder.packed_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of the allocated cache."""
        return self._decoder.cache_bytes

    def allocate(self, num_blocks: int) -> None:
        """Allocate the paged cache once: ``num_blocks`` blocks of 16 slots in every layer."""
        try:
            self._decoder.allocate(num_blocks)
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from error
        except MemoryError as error:
            size = self.spec.cache_bytes_per_token(self.cache_type) * 16 * num_blocks
            raise BackendError(
                f"there is not enough memory for a cache of {num_blocks} blocks ({size / 2**20:,.0f} MiB); "
                "ask for fewer tokens"
            ) from error
        self.num_blocks = num_blocks

    def forward(self, step: StepBatch) -> StepOutput:
        """Compute one step; releases the GIL.

        Raises ``BackendError`` for a malformed step, and where another thread is in a step of this backend.
        """
        try:
            self._decoder.forward(
                step.tokens,
                step.positions,
                step.slots,
                step.parents,
                step.run_starts,
                step.block_table,
                step.context_lens,
                step.rows,
                step.hidden_rows,
                step.exits,
            )
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from error
        except TypeError as error:
            raise BackendError(_wrong_arrays(step)) from error
        except MemoryError as error:
            raise BackendError(f"there is not enough memory for {len(step.rows)} rows of logits") from error
        hidden = self._decoder.hidden().copy() if len(step.hidden_rows) else self._no_hidden()
        return StepOutput(_Logits(self._decoder), hidden)

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        """Run each planned row's chain and draw, in one call."""
        try:
            results = _native.sample(self._pool, self.instruction_set, output.logits.numpy(), *plan.arrays())
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from error
        return RowResults(*results)

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        """What each planned row's chain makes of it, without a draw, in one call."""
        try:
            found = _native.laws(self._pool, self.instruction_set, output.logits.numpy(), *plan.arrays())
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from error
        return [(RowStatus(status), ids, logits) for status, ids, logits in found]

    def offers(
        self,
        output: StepOutput,
        plan: SamplePlan,
        count: int,
        *,
        perturbed: bool = False,
        log_rows: bool = False,
    ) -> Offers:
        """The ``count`` best candidates that each planned row's chain leaves, in one call."""
        try:
            made = _native.offers(
                self._pool,
                self.instruction_set,
                output.logits.numpy(),
                *(*plan.arrays(), count, perturbed, log_rows),
            )
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from error
        return Offers(*made)

    def copy_slots(self, pairs: Int32Array) -> None:
        """Copy keys and values ``pairs[:, 0] -> pairs[:, 1]`` ([N, 2] slots) in every layer, in order."""
        try:
            self._decoder.copy_slots(pairs)
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from error
        except TypeError as error:
            raise BackendError("slots to copy must be C-contiguous int32, [N, 2]") from error

    def _no_hidden(self) -> Float32Array:
        return np.empty((0, self.spec.hidden_size), np.float32)


def _wrong_arrays(step: StepBatch) -> str:
    """What the native module refused about the types of a step's arrays."""
    for name, array in vars(step).items():
        if name == "exits" and array is None:
            continue
        shape = 2 if name == "block_table" else 1
        if not isinstance(array, np.ndarray):
            return f"malformed step: {name} must be an array, not {type(array).__name__}"
        if array.dtype != np.int32 or array.ndim != shape or not array.flags.c_contiguous:
            return (
                f"malformed step: {name} must be C-contiguous int32 of {shape} dimensions, "
                f"not {array.dtype} of {array.ndim}"
            )
    return "malformed step: its arrays are not int32 in this processor's memory"


def _native_spec(spec: ModelSpec) -> _native.Spec:
    native = _native.Spec()
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "norm_epsilon",
        "norm",
        "norm_first",
        "norm_after",
        "query_key_norm",
        "activation",
        "gated",
        "learned_positions",
        "parallel_residual",
        "attention_softcap",
        "final_softcap",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
    ):
        setattr(native, name, getattr(spec, name))
    native.attention_scale = spec.attention_scale or spec.head_dim**-0.5
    native.rotaries = [
        _native.Rotary(rotary.pairs == "halves", rotary.inverse_frequencies, rotary.factor)
        for rotary in spec.rotaries
    ]
    native.layers = [
        _native.LayerSpec(layer.window, -1 if layer.rotary is None else layer.rotary) for layer in spec.layers
    ]
    return native
