"""Sizes at the edges of what the kernels take, and steps at the edges of what a step may ask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.backend.steps import Branch, advance, int32, make_sequences, one_by_one, step_of
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import make_tensors, random_weights, stored_weights, tiny_spec
from unspool import _native
from unspool.backend.base import Float32Array, StepBatch
from unspool.backend.cpu import CpuBackend
from unspool.model.spec import ModelSpec
from unspool.model.tensor import Tensor, TensorType

SETS = _native.instruction_sets()
QUANTIZED = [TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1]
MANY_THREADS = 17  # more than most of these matrices have panels

FLOAT_SHAPES = {
    "half a group of inputs everywhere": tiny_spec(
        hidden_size=48,
        intermediate_size=80,
        num_heads=3,
        num_kv_heads=1,
        head_dim=16,
        rope_dim=16,
        vocab_size=33,
    ),
    "one panel of everything": tiny_spec(
        hidden_size=16,
        intermediate_size=16,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        rope_dim=2,
        vocab_size=1,
    ),
    "heads of 512": tiny_spec(
        hidden_size=32,
        intermediate_size=48,
        num_heads=2,
        num_kv_heads=1,
        head_dim=512,
        rope_dim=512,
        vocab_size=31,
    ),
    "heads of 80": tiny_spec(
        hidden_size=32, num_heads=3, num_kv_heads=3, head_dim=80, rope_dim=0, vocab_size=15
    ),
}
SHAPES = {
    "71 heads on one of keys": tiny_spec(hidden_size=32, num_heads=71 * 2, num_kv_heads=2, vocab_size=49),
    "25 heads on one of keys": tiny_spec(hidden_size=32, num_heads=25 * 32, num_kv_heads=32, vocab_size=16),
    "13 heads on one of keys": tiny_spec(
        hidden_size=32,
        intermediate_size=32,
        num_heads=26,
        num_kv_heads=2,
        head_dim=32,
        rope_dim=32,
        vocab_size=17,
    ),
}


def make(
    spec: ModelSpec,
    type_: TensorType = TensorType.F32,
    threads: int = 2,
    instruction_set: str | None = None,
    max_step_tokens: int = 512,
    num_blocks: int = 64,
) -> CpuBackend:
    backend = CpuBackend(
        spec,
        make_tensors(random_weights(spec), type_),
        threads=threads,
        instruction_set=instruction_set,
        max_step_tokens=max_step_tokens,
    )
    backend.allocate(num_blocks)
    return backend


def reference_rows(spec: ModelSpec, type_: TensorType, branch: Branch) -> Float32Array:
    weights = stored_weights(random_weights(spec), type_)
    backend = ReferenceBackend(spec, weights, cache_dtype=np.float16, max_step_tokens=4096)
    backend.allocate(len(branch.table))
    return backend.forward(step_of([(branch, len(branch.tokens))])).logits.numpy()


def rows_of(backend: CpuBackend, length: int, chunks: list[int]) -> Float32Array:
    (branch,) = make_sequences([length], backend.spec.vocab_size)
    for chunk in chunks:
        advance(backend, [(branch, chunk)])
    return np.stack(branch.logits)


@pytest.mark.parametrize("type_", [TensorType.F32, TensorType.F16, TensorType.BF16], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [*FLOAT_SHAPES, *SHAPES])
def test_rows_of_odd_shapes_equal_the_reference(shape: str, type_: TensorType) -> None:
    spec = (FLOAT_SHAPES | SHAPES)[shape]
    (branch,) = make_sequences([21], spec.vocab_size)
    expected = reference_rows(spec, type_, branch)
    got = rows_of(make(spec, type_), 21, [20, 1])
    np.testing.assert_allclose(got, expected, atol=5e-3)
    for instruction_set in SETS:
        for threads in (1, MANY_THREADS):
            backend = make(spec, type_, threads, instruction_set)
            assert rows_of(backend, 21, [5, 16]).tobytes() == got.tobytes(), (instruction_set, threads)


@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_shapes_give_the_same_bits_however_they_are_computed(shape: str, type_: TensorType) -> None:
    spec = SHAPES[shape]
    expected = rows_of(make(spec, type_, threads=1), 21, [1] * 21)
    for instruction_set in SETS:
        for threads in (2, MANY_THREADS):
            backend = make(spec, type_, threads, instruction_set)
            assert rows_of(backend, 21, [20, 1]).tobytes() == expected.tobytes(), (instruction_set, threads)


def test_tensors_of_every_type_in_one_model() -> None:
    """Gate and up, whose panels alternate, of unequal types too; and a head that is not the embedding."""
    spec = tiny_spec(vocab_size=45, tied_embeddings=False, num_layers=3)
    weights = random_weights(spec)
    stored = {type_: make_tensors(weights, type_) for type_ in (*QUANTIZED, TensorType.F32, TensorType.F16)}
    mixed = {
        role: list(stored.values())[i % len(stored)][role] for i, role in enumerate(stored[TensorType.F32])
    }
    results = set()
    for instruction_set in SETS:
        for threads, chunks in ((1, [1] * 30), (2, [30]), (3, [7, 23]), (MANY_THREADS, [29, 1])):
            backend = CpuBackend(spec, mixed, threads=threads, instruction_set=instruction_set)
            backend.allocate(4)
            results.add(rows_of(backend, 30, chunks).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("heads", [(9, 3), (8, 1), (1, 1)])
def test_one_token_after_thousands(heads: tuple[int, int]) -> None:
    """Its pieces are shared out between threads, or not: the bits are the same, and right."""
    spec = tiny_spec(num_layers=1, num_heads=heads[0], num_kv_heads=heads[1], context_length=4096)
    length = 16 * 140 + 1
    (branch,) = make_sequences([length], spec.vocab_size)
    expected = reference_rows(spec, TensorType.F32, branch)[-1]
    results = set()
    for threads in (1, 2, 5, 33):
        backend = make(spec, threads=threads, num_blocks=256)
        rows = rows_of(backend, length, [512] * 4 + [length - 4 * 512 - 1, 1])
        np.testing.assert_allclose(rows[-1], expected, atol=2e-3)
        results.add(rows.tobytes())
    assert len(results) == 1


def test_a_step_of_one_token_at_most() -> None:
    spec = tiny_spec()
    expected = rows_of(make(spec, TensorType.Q4_0), 40, [40])
    for threads in (1, 2, 5):
        backend = make(spec, TensorType.Q4_0, threads, max_step_tokens=1)
        (rows,) = one_by_one(backend, make_sequences([40], spec.vocab_size))
        assert rows.tobytes() == expected.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_come_in_any_order_any_number_of_times_or_not_at_all(threads: int) -> None:
    spec = tiny_spec(vocab_size=45)
    backend = make(spec, TensorType.Q8_0, threads)
    (branch,) = make_sequences([30], spec.vocab_size)
    step = step_of([(branch, 30)], hidden=True)
    output = backend.forward(step)
    all_rows, all_hidden = output.logits.numpy().copy(), output.hidden
    for rows, hidden in (
        ([29, 3, 3, 0, 29, 3], [7, 7]),
        ([5], []),
        ([], [11, 2]),
        ([], []),
        ([29] * 30, [0] * 30),
        ([], list(range(30))),
    ):
        output = backend.forward(replace(step, rows=int32(*rows), hidden_rows=int32(*hidden)))
        assert output.logits.numpy().shape == (len(rows), spec.vocab_size)
        assert output.logits.numpy().tobytes() == all_rows[rows].tobytes()
        assert output.hidden.shape == (len(hidden), spec.hidden_size)
        assert output.hidden.tobytes() == all_hidden[hidden].tobytes()


def one_token(**changes: np.ndarray) -> StepBatch:
    step = StepBatch(
        tokens=int32(3),
        positions=int32(0),
        slots=int32(16 * 5),
        parents=int32(-1),
        run_starts=int32(0, 1),
        block_table=int32(5)[None],
        context_lens=int32(0),
        rows=int32(0),
        hidden_rows=int32(),
    )
    return replace(step, **changes)


def test_a_block_table_entry_that_nothing_is_read_through_may_hold_anything() -> None:
    backend = make(tiny_spec())
    expected = backend.forward(one_token()).logits.numpy().copy()
    for entry in (-1, 64, 2**28 + 5, 2**31 - 1, -(2**31)):  # 2^28 * 16 is 0 in 32 bits
        got = backend.forward(one_token(block_table=int32(entry)[None])).logits.numpy()
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("type_", [TensorType.F32, *QUANTIZED], ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_row_that_is_not_a_number_shows_it_and_spares_its_neighbours(type_: TensorType, bad: float) -> None:
    """One value of one token's embedding is broken: no int8 rounding hides that."""
    spec = tiny_spec(vocab_size=45, tied_embeddings=False)
    tensors = make_tensors(random_weights(spec), type_)
    table = random_weights(spec)["token_embd.weight"].copy()
    table[7, 40] = bad
    for instruction_set in SETS:
        rows = []
        for embedding in (table, np.where(np.arange(45)[:, None] == 7, 0.5, table).astype(np.float32)):
            data = embedding.view(np.uint8).reshape(-1)
            changed = Tensor("token_embd.weight", TensorType.F32, 45, spec.hidden_size, data)
            backend = CpuBackend(spec, dict(tensors, embedding=changed), instruction_set=instruction_set)
            backend.allocate(8)
            broken = Branch(int32(1, 7, 2), int32(6))
            sound = Branch(int32(*range(20)[::-1]) % 7, int32(2, 0))
            advance(backend, [(broken, 3), (sound, 20)])
            rows.append((np.stack(broken.logits), np.stack(sound.logits)))
        (broken_rows, beside_broken), (_, beside_sound) = rows
        assert np.isfinite(broken_rows[0]).all()
        assert np.isnan(broken_rows[1:]).all()
        assert beside_broken.tobytes() == beside_sound.tobytes()


def test_values_too_small_for_an_int8_scale_round_to_zero_on_every_instruction_set() -> None:
    spec = tiny_spec(vocab_size=45)
    weights = random_weights(spec)
    for name in weights:
        if "attn_norm" in name or "ffn_norm" in name:
            weights[name][::2] = 1e-37
            weights[name][1::2] = 1e-42
    results = set()
    for instruction_set in SETS:
        backend = CpuBackend(spec, make_tensors(weights, TensorType.Q8_0), instruction_set=instruction_set)
        backend.allocate(4)
        results.add(rows_of(backend, 9, [9]).tobytes())
    assert len(results) == 1
