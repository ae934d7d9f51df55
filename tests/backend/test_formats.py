"""Every storage type means what the gguf package says, and is computed with as exactly as any other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend.blocks import (
    FLOATS,
    QUANTIZED,
    SCALES,
    dequantized,
    random_blocks,
    random_model,
    set_half,
    tensor_of,
    values,
)
from tests.backend.steps import advance, make_sequences, step_of
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import random_weights, role, tiny_spec
from unspool import _native
from unspool.backend.cpu import CpuBackend
from unspool.errors import BackendError
from unspool.model.spec import ModelSpec
from unspool.model.tensor import Tensor, TensorType

SETS = _native.instruction_sets()
NEW = [t for t in QUANTIZED if t not in (TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0)]
SPEC = tiny_spec(
    hidden_size=256, intermediate_size=512, num_heads=16, num_kv_heads=4, vocab_size=77, tied_embeddings=False
)

EXTREMES = np.array([0, -0.0, 2**-24, -(2**-24), 2**-14, 65504, -65504, 1, 1023 * 2**-24], np.float16)


def extreme_blocks(type_: TensorType) -> npt.NDArray[np.uint8]:
    """34 rows of 512: random bits, then extreme scales, then all zeros and all ones under a scale."""
    rng = np.random.default_rng(int(type_))
    blocks = random_blocks(type_, 34, 512, rng)
    third = len(blocks) // 3
    for at in SCALES.get(type_, ()):
        set_half(blocks[third:], at, rng.choice(EXTREMES, len(blocks) - third))
    if type_ in SCALES:
        for block, byte in ((third, 0), (third + 1, 255)):
            blocks[block] = byte
            for at in SCALES[type_]:
                set_half(blocks[block : block + 1], at, 0.5)
    return blocks


@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
def test_values_are_those_of_the_gguf_package(type_: TensorType) -> None:
    blocks = extreme_blocks(type_)
    expected = dequantized(type_, blocks).reshape(34, 512)
    got = values(tensor_of(type_, 34, 512, blocks))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(got[number].view(np.uint32), expected[number].view(np.uint32))
    assert number.mean() > 0.9


@pytest.mark.parametrize("type_", FLOATS, ids=lambda t: t.name)
def test_floats_are_those_of_the_gguf_package(type_: TensorType) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    words = words if type_ != TensorType.F32 else np.stack([words, words[::-1]], 1).reshape(-1)
    blocks = words.view(np.uint8)
    columns = len(blocks) // type_.block_bytes
    expected = dequantized(type_, blocks)
    for packed in (False, True):
        got = values(tensor_of(type_, 1, columns, blocks), packed)[0]
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("type_", [t for t in QUANTIZED if t != TensorType.MXFP4], ids=lambda t: t.name)
def test_packing_loses_nothing(type_: TensorType) -> None:
    """Of any number of rows, for types that have a format of their own and for those that take another's."""
    tensor = tensor_of(type_, 34, 512, extreme_blocks(type_))
    stored = values(tensor)
    sound = ~np.isnan(stored)
    packed = values(tensor, packed=True)
    np.testing.assert_array_equal(packed[sound].view(np.uint32), stored[sound].view(np.uint32))


def mxfp4(exponents: npt.ArrayLike) -> Tensor:
    """A block for each exponent, all sixteen codes in each."""
    exponents = np.asarray(exponents, np.uint8)
    codes = np.arange(16, dtype=np.uint8)
    blocks = np.concatenate(
        [exponents[:, None], np.broadcast_to(codes | codes[::-1] << 4, (len(exponents), 16))], axis=1
    )
    return tensor_of(TensorType.MXFP4, len(exponents), 32, blocks)


def test_mxfp4_is_packed_exactly_from_two_to_the_minus_24_and_rounded_below() -> None:
    exact = mxfp4(np.arange(104, 147))
    np.testing.assert_array_equal(values(exact, packed=True), values(exact))
    small = mxfp4(np.arange(104))
    assert np.abs(values(small, packed=True) - values(small)).max() <= 2**-25
    assert np.abs(values(small)).max() < 2**-20


def test_mxfp4_beyond_what_weights_can_be_is_refused() -> None:
    tensors, _ = random_model(SPEC, TensorType.MXFP4)
    huge = tensors["layers.1.up"].data.copy()
    huge[0] = 147
    tensors["layers.1.up"] = tensor_of(TensorType.MXFP4, SPEC.intermediate_size, 256, huge)
    with pytest.raises(BackendError, match=r"layers\.1\.up.*finite"):
        CpuBackend(SPEC, tensors)


@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_scales_that_are_not_finite_are_refused(type_: TensorType, bad: float) -> None:
    for at in SCALES.get(type_, ()):
        tensors, _ = random_model(SPEC, type_)
        tensor = tensors["layers.0.down"]
        blocks = tensor.data.reshape(-1, type_.block_bytes).copy()
        set_half(blocks[-1:], at, bad)
        tensors["layers.0.down"] = tensor_of(type_, tensor.rows, tensor.columns, blocks)
        with pytest.raises(BackendError, match=r"layers\.0\.down.*not finite"):
            CpuBackend(SPEC, tensors)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("type_", NEW, ids=lambda t: t.name)
def test_products_equal_the_reference_that_rounds_activations_alike(
    type_: TensorType, instruction_set: str
) -> None:
    tensors, weights = random_model(SPEC, type_)
    wanted = ReferenceBackend(
        SPEC, weights, cache_dtype=np.float16, int8_activations=True, max_step_tokens=512
    )
    native = CpuBackend(SPEC, tensors, threads=2, instruction_set=instruction_set)
    step = step_of([(b, len(b.tokens)) for b in make_sequences([1, 2] * 12, SPEC.vocab_size)])
    rows = []
    for backend in (wanted, native):
        backend.allocate(64)
        rows.append(backend.forward(step).logits.numpy())
    difference = np.abs(rows[0] - rows[1])
    assert np.median(difference) < 1e-3 * rows[0].std()
    assert difference.max() < 0.2 * rows[0].std()


def rows_of(spec: ModelSpec, tensors: dict[str, Tensor], threads: int, set_: str, chunks: list[int]) -> bytes:
    backend = CpuBackend(spec, tensors, threads=threads, instruction_set=set_)
    backend.allocate(8)
    (branch,) = make_sequences([sum(chunks)], spec.vocab_size)
    for chunk in chunks:
        advance(backend, [(branch, chunk)])
    return np.stack(branch.logits).tobytes()


@pytest.mark.parametrize("type_", NEW, ids=lambda t: t.name)
def test_rows_have_the_same_bits_however_they_are_computed(type_: TensorType) -> None:
    """Every size of a tile, on every instruction set, by any number of threads."""
    tensors, _ = random_model(SPEC, type_)
    results = {
        rows_of(SPEC, tensors, threads, set_, chunks)
        for set_ in SETS
        for threads, chunks in ((1, [1] * 37), (2, [1, 2, 3, 4, 5, 6, 7, 9]), (3, [37]), (17, [26, 11]))
    }
    assert len(results) == 1


def test_every_type_in_one_model() -> None:
    """Gate and up of unequal types, whose panels alternate, among them."""
    models = {type_: random_model(SPEC, type_)[0] for type_ in QUANTIZED}
    types = iter(QUANTIZED * 2)
    mixed = {
        name: models[next(types)][name] if tensor.rows > 1 else tensor
        for name, tensor in models[TensorType.Q8_0].items()
    }
    results = {
        rows_of(SPEC, mixed, threads, set_, chunks)
        for set_ in SETS
        for threads, chunks in ((1, [1] * 20), (2, [20]), (17, [13, 7]))
    }
    assert len(results) == 1


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
def test_the_largest_codes_meet_the_largest_activations(
    type_: TensorType, sign: int, instruction_set: str
) -> None:
    """No partial sum of a kernel overflows: equal values reach a head whose bits are all ones."""
    tensors = {}
    for name, weight in random_weights(SPEC).items():
        value = 1.0 if weight.ndim == 1 else sign * 0.25 if name.startswith("token_embd") else 0.0
        data = np.full(weight.size, value, np.float32).view(np.uint8)
        rows, columns = np.atleast_2d(weight).shape
        tensors[role(name)] = tensor_of(TensorType.F32, rows, columns, data, name)
    blocks = np.full_like(random_blocks(type_, SPEC.vocab_size, 256, np.random.default_rng(0)), 255)
    for at in SCALES.get(type_, ()):
        set_half(blocks, at, 2**-7)
    if type_ == TensorType.MXFP4:
        blocks[:, 0] = 120
    tensors["head"] = tensor_of(type_, SPEC.vocab_size, 256, blocks)
    backend = CpuBackend(SPEC, tensors, instruction_set=instruction_set)
    backend.allocate(4)
    logits = backend.forward(step_of([(make_sequences([9], 77)[0], 9)])).logits.numpy()
    one = sign * 0.25 / np.sqrt(0.0625 + SPEC.norm_epsilon)
    row = dequantized(type_, blocks[: 256 // type_.block_elements])
    np.testing.assert_allclose(logits, one * row.sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
def test_what_computes_with_a_type_is_said(type_: TensorType) -> None:
    converted = {
        TensorType.Q3_K: TensorType.Q6_K,
        TensorType.IQ4_NL: TensorType.Q8_0,
        TensorType.MXFP4: TensorType.Q8_0,
    }
    assert type_.computed_as == converted.get(type_, type_)


@pytest.mark.parametrize("type_", [t for t in QUANTIZED if t != TensorType.Q2_K], ids=lambda t: t.name)
def test_packed_weights_take_about_the_bytes_of_the_type_that_computes(type_: TensorType) -> None:
    """What a step of one token reads, beside what blocks of that type would take in a file."""
    spec = tiny_spec(hidden_size=1024, intermediate_size=256, num_heads=16, num_layers=1, vocab_size=256)
    tensors, _ = random_model(spec, type_)
    kind = type_.computed_as
    weights = sum(t.rows * t.columns for t in tensors.values() if t.rows > 1)
    stored = weights // kind.block_elements * kind.block_bytes
    assert stored <= CpuBackend(spec, tensors).packed_bytes <= 1.03 * stored
