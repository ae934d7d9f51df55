"""Blocks of every storage type with random contents, and models of them."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

from tests.reference.tiny import Weights, random_weights, role
from unspool import _native
from unspool.model.spec import ModelSpec
from unspool.model.tensor import Tensor, TensorType

FLOATS = [TensorType.F32, TensorType.F16, TensorType.BF16]
QUANTIZED = [type_ for type_ in TensorType if type_ not in FLOATS]

SCALES: dict[TensorType, tuple[int, ...]] = {
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,),
    TensorType.Q2_K: (80, 82),
    TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,),
}
"""Where a block has its scale, and its scale of minima: halves, all but MXFP4's byte."""

Bytes = npt.NDArray[np.uint8]


def random_blocks(type_: TensorType, rows: int, columns: int, rng: np.random.Generator) -> Bytes:
    """[rows * columns / block, bytes] of a type, every bit random, scales not excepted."""
    count = rows * columns // type_.block_elements
    return rng.integers(0, 256, (count, type_.block_bytes), np.uint8)


def set_half(blocks: Bytes, at: int, values: npt.ArrayLike) -> None:
    """Write a half to byte ``at`` of every block."""
    halves = np.broadcast_to(np.asarray(values, np.float16), len(blocks))
    blocks[:, at : at + 2] = halves.copy().view(np.uint8).reshape(-1, 2)


def dequantized(type_: TensorType, blocks: Bytes) -> npt.NDArray[np.float32]:
    """What the gguf package makes of blocks, in one row."""
    kind = gguf.GGMLQuantizationType(int(type_))
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(blocks.reshape(1, -1), kind), np.float32).reshape(-1)


def tensor_of(type_: TensorType, rows: int, columns: int, blocks: Bytes, name: str = "t") -> Tensor:
    return Tensor(name, type_, rows, columns, np.ascontiguousarray(blocks).reshape(-1))


def values(tensor: Tensor, packed: bool = False) -> npt.NDArray[np.float32]:
    """What the native module makes of a tensor: as its file has it, or as kernels compute with it."""
    return _native.values((int(tensor.type), tensor.rows, tensor.columns, tensor.data), packed)


def weight_blocks(
    type_: TensorType, rows: int, columns: int, rng: np.random.Generator, std: float = 0.2
) -> Bytes:
    """Random codes under scales such that values have about mean 0 and the given deviation."""
    blocks = random_blocks(type_, rows, columns, rng)
    if type_ == TensorType.MXFP4:
        blocks[:, 0] = rng.integers(122, 125, len(blocks))
        return blocks
    at = SCALES[type_]
    for offset, value in zip(at, (1, 0), strict=False):
        set_half(blocks, offset, value)
    codes = dequantized(type_, blocks)
    scale = std / codes.std() * rng.uniform(0.7, 1.4, len(blocks))
    set_half(blocks, at[0], scale)
    if len(at) == 2:
        set_half(blocks, at[0], 0)
        set_half(blocks, at[1], 1)
        set_half(blocks, at[1], -codes.mean() / dequantized(type_, blocks).mean() * scale)
        set_half(blocks, at[0], scale)
    return blocks


def random_model(spec: ModelSpec, type_: TensorType, seed: int = 0) -> tuple[dict[str, Tensor], Weights]:
    """Tensors by role, matrices of random blocks, and the same weights as float32 by name."""
    rng = np.random.default_rng(seed)
    tensors, weights = {}, random_weights(spec, seed)
    for name, weight in weights.items():
        if weight.ndim == 1:
            tensors[role(name)] = Tensor(name, TensorType.F32, 1, len(weight), weight.view(np.uint8))
            continue
        rows, columns = weight.shape
        blocks = weight_blocks(type_, rows, columns, rng)
        tensors[role(name)] = tensor_of(type_, rows, columns, blocks, name)
        weights[name] = dequantized(type_, blocks).reshape(weight.shape)
    return tensors, weights
