"""Float weights to blocks of a quantized type, as a model is loaded.

Blocks are those that the ``gguf`` package (and so llama.cpp) writes, bit for bit: for 32 values x,

    q8_0   d = max |x| / 127, codes round(x / d), halves away from zero
    q4_0   d = (the x that is largest in size) / -8, codes floor(x / d + 8.5) in 0..15

with d kept as float16 and its float32 reciprocal used for the codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from unspool.errors import ModelFileError, ParameterError, shown
from unspool.model.tensor import Tensor, TensorType

QuantizeType = Literal["q8_0", "q4_0"]
"""What weights can be quantized to at load."""

PIECE_BLOCKS = 1 << 14
"""Blocks that are made at a time: the working memory is a few times their 2 MB of float32."""

Float32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def quantized(tensor: Tensor, type_: QuantizeType) -> Tensor:
    """The tensor's values in blocks of ``type_``, in new memory of their final size and a bounded rest.

    Args:
        tensor: float32, float16 or bfloat16; its rows are multiples of 32.
        type_: ``q8_0`` (8.5 bits a weight) or ``q4_0`` (4.5).

    Raises ``ParameterError`` for another type, and ``ModelFileError`` for a tensor that is no float, whose
    rows are not whole blocks, or that holds a value that is not finite or whose scale a float16 cannot hold.
    """
    encode = _encoder(type_)
    kind = TensorType[type_.upper()]
    read = _READERS.get(tensor.type)
    if read is None:
        raise ModelFileError(
            f"the tensor {tensor.name!r} is stored as {tensor.type.name}; "
            f"only F32, F16 and BF16 can be quantized to {type_} at load"
        )
    if tensor.columns % kind.block_elements:
        raise ModelFileError(
            f"the tensor {tensor.name!r} has rows of {tensor.columns}; "
            f"{type_} needs multiples of {kind.block_elements}: load it without quantize"
        )
    count = tensor.rows * tensor.columns // kind.block_elements
    bytes_in = kind.block_elements * tensor.type.block_bytes
    out = np.empty((count, kind.block_bytes), np.uint8)
    for start in range(0, count, PIECE_BLOCKS):
        piece = out[start : start + PIECE_BLOCKS]
        data = tensor.data[bytes_in * start : bytes_in * (start + len(piece))]
        encode(_checked(tensor, type_, read(data).reshape(-1, kind.block_elements)), piece)
    out.flags.writeable = False
    return Tensor(tensor.name, kind, tensor.rows, tensor.columns, out.reshape(-1))


def _encoder(type_: QuantizeType) -> Callable[[Float32Array, Bytes], None]:
    encoders = {"q8_0": _encode_q8_0, "q4_0": _encode_q4_0}
    if type_ not in get_args(QuantizeType):
        raise ParameterError(
            f"quantize must be one of {', '.join(get_args(QuantizeType))}, not {shown(type_)}"
        )
    return encoders[type_]


def _checked(tensor: Tensor, type_: QuantizeType, x: Float32Array) -> Float32Array:
    largest = float(np.abs(x).max(initial=0.0))
    limit = 65504.0 * (127 if type_ == "q8_0" else 8)
    if not largest <= limit:
        raise ModelFileError(
            f"the tensor {tensor.name!r} holds {largest:g}, and {type_} reaches {limit:g}; "
            "the file is damaged, or load it without quantize"
        )
    return x


def _inverse(d: Float32Array) -> Float32Array:
    """1 / d, 0 where d is 0, and infinite where 1 / d is."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _encode_q8_0(x: Float32Array, out: Bytes) -> None:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore"):
        scaled = x * _inverse(d)
        size = np.abs(scaled)
        whole = np.floor(size)
        codes = np.sign(scaled) * (whole + np.floor(2 * (size - whole)))
        out[:, 2:] = codes.astype(np.int8).view(np.uint8)
    out[:, :2] = d.astype(np.float16).view(np.uint8)


def _encode_q4_0(x: Float32Array, out: Bytes) -> None:
    at = np.abs(x).argmax(axis=1)[:, None]
    d = np.take_along_axis(x, at, axis=1) / np.float32(-8)
    with np.errstate(invalid="ignore"):
        codes = np.trunc(x * _inverse(d) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    out[:, 2:] = codes[:, :16] | codes[:, 16:] << np.uint8(4)
    out[:, :2] = d.astype(np.float16).view(np.uint8)


def _read_bfloat(data: Bytes) -> Float32Array:
    return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


_READERS: dict[TensorType, Callable[[Bytes], Float32Array]] = {
    TensorType.F32: lambda data: data.view(np.float32),
    TensorType.F16: lambda data: data.view(np.float16).astype(np.float32),
    TensorType.BF16: _read_bfloat,
}
