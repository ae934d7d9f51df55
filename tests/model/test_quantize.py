"""Weights that are quantized at load are the bytes that the gguf package would have written."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from unspool.errors import ModelFileError, ParameterError
from unspool.model import quantize
from unspool.model.quantize import QuantizeType, quantized
from unspool.model.tensor import Tensor, TensorType

FLOATS = [TensorType.F32, TensorType.F16, TensorType.BF16]


def stored(
    values: npt.ArrayLike, type_: TensorType = TensorType.F32
) -> tuple[Tensor, npt.NDArray[np.float32]]:
    """A tensor of the values, and the float32 that it holds once stored."""
    x = np.atleast_2d(np.asarray(values, np.float32))
    kind = gguf.GGMLQuantizationType(int(type_))
    data = np.ascontiguousarray(gguf.quants.quantize(x, kind)).view(np.uint8)
    kept = gguf.quants.dequantize(data, kind).reshape(x.shape)
    return Tensor("blk.0.ffn_up.weight", type_, len(x), x.shape[1], data.reshape(-1)), kept


@pytest.mark.parametrize("to", ["q8_0", "q4_0"])
@pytest.mark.parametrize("type_", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize("piece_blocks", [1, 7, 1 << 14])
def test_bytes_are_those_of_the_gguf_package(
    to: QuantizeType, type_: TensorType, piece_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties, zeros, one value in a block, values of equal size and other sign; in pieces of any size."""
    monkeypatch.setattr(quantize, "PIECE_BLOCKS", piece_blocks)
    rng = np.random.default_rng(3)
    x = rng.normal(0, 0.05, (60, 96)).astype(np.float32)
    x[:10] = np.round(x[:10] * 20) / 8
    x[10:12] = 0
    x[12, 1:] = 0
    x[13] = np.tile([1.0, -1.0], 48)
    x[14] = np.tile(np.arange(-16, 16) * 127 / 32, 3)
    x[15:20] *= 1e-5
    x[20:25] *= 1e5
    tensor, kept = stored(x, type_)
    made = quantized(tensor, to)
    assert (made.name, made.type, made.rows, made.columns) == (tensor.name, TensorType[to.upper()], 60, 96)
    expected = gguf.quants.quantize(kept, gguf.GGMLQuantizationType(int(made.type)))
    np.testing.assert_array_equal(made.data, expected.reshape(-1))
    assert not made.data.flags.writeable


@pytest.mark.parametrize("to", ["q8_0", "q4_0"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_blocks_cannot_hold_are_refused(to: QuantizeType, bad: float) -> None:
    tensor, _ = stored([[0.5] * 63 + [bad]])
    with pytest.raises(ModelFileError, match=rf"ffn_up.*{to} reaches"):
        quantized(tensor, to)


@pytest.mark.parametrize(("to", "limit"), [("q8_0", 65504 * 127), ("q4_0", 65504 * 8)])
def test_the_largest_value_that_blocks_can_hold_is_taken(to: QuantizeType, limit: float) -> None:
    made = quantized(stored([[limit] * 32])[0], to)
    kind = gguf.GGMLQuantizationType(int(made.type))
    assert np.isfinite(gguf.quants.dequantize(made.data[None], kind)).all()


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ModelFileError, match=r"rows of 48.*multiples of 32"):
        quantized(stored(np.ones((2, 48)))[0], "q8_0")


def test_what_is_quantized_already_is_refused() -> None:
    tensor = quantized(stored(np.ones((2, 32)))[0], "q4_0")
    with pytest.raises(ModelFileError, match="stored as Q4_0"):
        quantized(tensor, "q8_0")


@pytest.mark.parametrize("to", ["q4_k", "Q8_0", "", None, 8, ["q8_0"]])
def test_an_unknown_type_is_refused(to: Any) -> None:
    with pytest.raises(ParameterError, match="q8_0, q4_0"):
        quantized(stored(np.ones((1, 32)))[0], to)
