"""Types of the native module: see native/module.cpp."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def instruction_sets() -> list[str]: ...
def read_bandwidth(pool: Pool, bytes_per_worker: int, repeats: int) -> float: ...
def packed_type(type: int) -> int: ...
def values(
    tensor: tuple[int, int, int, npt.NDArray[np.uint8]], packed: bool = False
) -> npt.NDArray[np.float32]: ...

class Pool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class LayerSpec:
    def __init__(self, window: int, rotary: int) -> None: ...
    @property
    def window(self) -> int: ...
    @property
    def rotary(self) -> int: ...

class Rotary:
    def __init__(self, halves: bool, inverse_frequencies: Sequence[float], factor: float) -> None: ...
    @property
    def halves(self) -> bool: ...
    @property
    def inverse_frequencies(self) -> list[float]: ...
    @property
    def factor(self) -> float: ...

class Spec:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rotaries: list[Rotary]
    layers: list[LayerSpec]
    norm: str
    norm_first: bool
    norm_after: bool
    query_key_norm: str
    activation: str
    gated: bool
    learned_positions: int
    parallel_residual: bool
    attention_scale: float
    attention_softcap: float
    final_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    def __init__(self) -> None: ...

class Decoder:
    def __init__(
        self,
        pool: Pool,
        instruction_set: str,
        max_step_tokens: int,
        cache_type: str,
        spec: Spec,
        tensors: dict[str, tuple[int, int, int, npt.NDArray[np.uint8]]],
    ) -> None: ...
    def allocate(self, num_blocks: int) -> None: ...
    def forward(
        self,
        tokens: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
        parents: npt.NDArray[np.int32],
        run_starts: npt.NDArray[np.int32],
        block_table: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        hidden_rows: npt.NDArray[np.int32],
        exits: npt.NDArray[np.int32] | None = None,
    ) -> None: ...
    def copy_slots(self, pairs: npt.NDArray[np.int32]) -> None: ...
    def logits(self) -> npt.NDArray[np.float32]: ...
    def hidden(self) -> npt.NDArray[np.float32]: ...
    @property
    def packed_bytes(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def instruction_set(self) -> str: ...

def sample(
    pool: Pool,
    instruction_set: str,
    logits: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int32],
    chain_starts: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int32],
    values: npt.NDArray[np.float64],
    token_starts: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    amounts: npt.NDArray[np.float32],
    keys: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int32],
    sample_indices: npt.NDArray[np.int32],
    given: npt.NDArray[np.int32],
    num_logprobs: int,
) -> tuple[npt.NDArray[Any], ...]: ...
def offers(
    pool: Pool,
    instruction_set: str,
    logits: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int32],
    chain_starts: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int32],
    values: npt.NDArray[np.float64],
    token_starts: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    amounts: npt.NDArray[np.float32],
    keys: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int32],
    sample_indices: npt.NDArray[np.int32],
    given: npt.NDArray[np.int32],
    num_logprobs: int,
    count: int,
    perturbed: bool,
    log_rows: bool,
) -> tuple[npt.NDArray[Any], ...]: ...
def laws(
    pool: Pool,
    instruction_set: str,
    logits: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int32],
    chain_starts: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int32],
    values: npt.NDArray[np.float64],
    token_starts: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    amounts: npt.NDArray[np.float32],
    keys: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int32],
    sample_indices: npt.NDArray[np.int32],
    given: npt.NDArray[np.int32],
    num_logprobs: int,
) -> list[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]]: ...
