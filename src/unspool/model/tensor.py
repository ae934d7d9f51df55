"""A tensor as it lies in a model file: a name, a storage type, a shape and the raw bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class TensorType(IntEnum):
    """Storage types, numbered as GGUF numbers them."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    BF16 = 30
    MXFP4 = 39

    @property
    def block_elements(self) -> int:
        """Elements that one storage block holds."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one storage block."""
        return _BLOCKS[self][1]

    @property
    def computed_as(self) -> TensorType:
        """The type whose kernels compute with this one: itself, or one that holds the same values."""
        from unspool import _native

        return TensorType(_native.packed_type(int(self)))


_BLOCKS: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.IQ4_NL: (32, 18),
    TensorType.MXFP4: (32, 17),
    TensorType.Q2_K: (256, 84),
    TensorType.Q3_K: (256, 110),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
}


@dataclass(frozen=True)
class Tensor:
    """A matrix of ``rows`` outputs by ``columns`` inputs (a vector has one row), not yet decoded."""

    name: str
    type: TensorType
    rows: int
    columns: int
    data: npt.NDArray[np.uint8]
    """[bytes] read-only; row-major storage blocks, often mapped from a file."""
