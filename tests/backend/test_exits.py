"""Rows taken before the last layer: what the reference defines, and the same bits in any step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend.steps import Branch, int32, make_sequences, step_of
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import make_tensors, random_weights, stored_weights, tiny_spec
from unspool import _native
from unspool.backend.base import Backend, Float32Array, Int32Array, StepBatch
from unspool.backend.cpu import CpuBackend
from unspool.cache.size import CacheType
from unspool.errors import BackendError
from unspool.model.spec import ModelSpec
from unspool.model.tensor import TensorType

SETS = _native.instruction_sets()
LAYERS = 4
SHAPES = {
    "grouped": tiny_spec(num_layers=LAYERS, vocab_size=45),
    "three heads a group, a head of its own": tiny_spec(
        num_layers=LAYERS,
        hidden_size=96,
        num_heads=9,
        num_kv_heads=3,
        head_dim=32,
        rope_dim=32,
        vocab_size=77,
        tied_embeddings=False,
    ),
}
SPEC = SHAPES["grouped"]
Bits = Mapping[tuple[int, int], bytes]
"""A row's bytes by its position in a branch and its exit."""


def make(
    spec: ModelSpec,
    type_: TensorType = TensorType.Q4_1,
    threads: int = 2,
    instruction_set: str | None = None,
    max_step_tokens: int = 512,
    cache_type: CacheType = "float16",
) -> CpuBackend:
    tensors = make_tensors(random_weights(spec), type_)
    backend = CpuBackend(
        spec,
        tensors,
        threads=threads,
        instruction_set=instruction_set,
        max_step_tokens=max_step_tokens,
        cache_type=cache_type,
    )
    backend.allocate(64)
    return backend


def reference(
    spec: ModelSpec, type_: TensorType, int8_activations: bool, cache_dtype: npt.DTypeLike = np.float16
) -> ReferenceBackend:
    weights = stored_weights(random_weights(spec), type_)
    backend = ReferenceBackend(spec, weights, cache_dtype=cache_dtype, int8_activations=int8_activations)
    backend.allocate(64)
    return backend


def at_every_exit(step: StepBatch) -> StepBatch:
    """Each token's row after each of the layers, the exits of a token next to each other."""
    tokens = np.arange(len(step.tokens), dtype=np.int32)
    return replace(
        step,
        rows=np.repeat(tokens, LAYERS),
        exits=np.tile(np.arange(1, LAYERS + 1, dtype=np.int32), len(tokens)),
    )


def rows_of(backend: Backend, step: StepBatch) -> Float32Array:
    return backend.forward(step).logits.numpy().copy()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("type_", [TensorType.F32, TensorType.F16, TensorType.BF16], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_equal_the_reference_at_every_exit(shape: str, type_: TensorType, instruction_set: str) -> None:
    spec = SHAPES[shape]
    (branch,) = make_sequences([45], spec.vocab_size)
    step = at_every_exit(step_of([(branch, 45)]))
    expected = rows_of(reference(spec, type_, int8_activations=False, cache_dtype=np.float32), step)
    got = rows_of(make(spec, type_, instruction_set=instruction_set, cache_type="float32"), step)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    layers = expected.reshape(45, LAYERS, -1)
    assert np.abs(np.diff(layers, axis=1)).max(axis=(0, 2)).min() > 0.1  # a wrong layer would show


@pytest.mark.parametrize("type_", [TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1], ids=lambda t: t.name)
def test_rows_of_integer_products_equal_the_reference_at_every_exit(type_: TensorType) -> None:
    """As in ``test_cpu``: an activation halfway between two int8 values may be rounded to either."""
    branches = make_sequences([1, 2] * 20, SPEC.vocab_size)
    step = at_every_exit(step_of([(b, len(b.tokens)) for b in branches]))
    difference = np.abs(
        rows_of(make(SPEC, type_), step) - rows_of(reference(SPEC, type_, int8_activations=True), step)
    ).reshape(-1, LAYERS, SPEC.vocab_size)
    for exit_ in range(LAYERS):
        assert np.median(difference[:, exit_]) < 5e-5
        assert difference[:, exit_].mean() < 1e-2
        assert difference[:, exit_].max() < 0.4


@pytest.mark.parametrize("type_", [TensorType.F32, TensorType.Q4_1], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_cut_off_after_some_layers_gives_the_rows_of_that_exit(shape: str, type_: TensorType) -> None:
    spec = SHAPES[shape]
    tensors = make_tensors(random_weights(spec), type_)
    (branch,) = make_sequences([45], spec.vocab_size)
    step = step_of([(branch, 45)])
    for exit_ in range(1, LAYERS + 1):
        layers = [f"layers.{i}." for i in range(exit_, LAYERS)]
        kept = {role: t for role, t in tensors.items() if not role.startswith(tuple(layers))}
        cut_off = CpuBackend(replace(spec, num_layers=exit_), kept)
        cut_off.allocate(64)
        exits = np.full(45, exit_, np.int32)
        rows = rows_of(make(spec, type_), replace(step, exits=exits))
        assert rows.tobytes() == rows_of(cut_off, step).tobytes(), exit_


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 3, 30])
def test_the_last_exit_is_no_exit(threads: int, count: int) -> None:
    backend = make(SPEC, threads=threads)
    (branch,) = make_sequences([count], SPEC.vocab_size)
    step = step_of([(branch, count)], hidden=True)
    plain = backend.forward(step)
    expected, hidden = plain.logits.numpy().tobytes(), plain.hidden.tobytes()
    output = backend.forward(replace(step, exits=np.full(count, LAYERS, np.int32)))
    assert output.logits.numpy().tobytes() == expected
    assert output.hidden.tobytes() == hidden


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_and_exits_come_in_any_order_any_number_of_times(threads: int) -> None:
    """Several exits of one token, tokens that only exit early beside full ones, hidden states beside both."""
    backend = make(SPEC, TensorType.Q8_0, threads)
    (branch,) = make_sequences([30], SPEC.vocab_size)
    step = step_of([(branch, 30)], hidden=True)
    hidden = backend.forward(step).hidden
    table = rows_of(backend, at_every_exit(step)).reshape(30, LAYERS, -1)
    rng = np.random.default_rng(threads)
    wants: list[tuple[Sequence[int], Sequence[int], Sequence[int]]] = [
        ([29] * 7, [2, 4, 1, 3, 3, 4, 1], []),
        ([29], [1], []),
        ([5, 29], [4, 1], [7, 7]),
        ([0, 1, 2], [1, 2, 3], [0]),
        ([], [], [11]),
        ([], [], []),
    ]
    for size in (1, 4, 33, 300):
        drawn = rng.integers(0, 30, size).tolist(), rng.integers(1, LAYERS + 1, size).tolist()
        wants.append((*drawn, rng.integers(0, 30, size % 5).tolist()))
    for rows, exits, hidden_rows in wants:
        wanted = replace(step, rows=int32(*rows), exits=int32(*exits), hidden_rows=int32(*hidden_rows))
        output = backend.forward(wanted)
        expected = table[int32(*rows), int32(*exits) - 1]
        assert output.logits.numpy().tobytes() == expected.tobytes()
        assert output.hidden.tobytes() == hidden[int32(*hidden_rows)].tobytes()


def every_bit(backend: CpuBackend, branch: Branch) -> Bits:
    """Every row of a branch at every exit, each token in a step of its own."""
    bits: dict[tuple[int, int], bytes] = {}
    while branch.left:
        rows = rows_of(backend, at_every_exit(step_of([(branch, 1)])))
        bits |= {(branch.cached, exit_ + 1): rows[exit_].tobytes() for exit_ in range(LAYERS)}
        branch.cached += 1
    return bits


def check_in_random_steps(
    backend: CpuBackend, branches: Sequence[Branch], expected: Sequence[Bits], seed: int
) -> None:
    """Random chunks of random branches in one step, of whose tokens some rows are wanted at random exits."""
    rng = np.random.default_rng(seed)
    while waiting := [i for i, b in enumerate(branches) if b.left]:
        chosen = rng.permutation(waiting)[: rng.integers(1, len(waiting) + 1)]
        counts = [int(rng.integers(1, min(60, branches[i].left) + 1)) for i in chosen]
        step = step_of([(branches[i], count) for i, count in zip(chosen, counts, strict=True)])
        size = int(rng.integers(0, 2 * len(step.tokens)))
        rows: Int32Array = rng.integers(0, len(step.tokens), size, dtype=np.int32)
        exits: Int32Array = rng.integers(1, LAYERS + 1, size, dtype=np.int32)
        logits = rows_of(backend, replace(step, rows=rows, exits=exits))
        for row, exit_, got in zip(rows, exits, logits, strict=True):
            branch = chosen[np.searchsorted(step.run_starts, row, side="right") - 1]
            assert got.tobytes() == expected[branch][int(step.positions[row]), int(exit_)]
        for i, count in zip(chosen, counts, strict=True):
            branches[i].cached += count


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("type_", [TensorType.F16, TensorType.Q4_1], ids=lambda t: t.name)
def test_rows_at_an_exit_depend_on_nothing_else_in_the_step(type_: TensorType, instruction_set: str) -> None:
    """0 bits of difference between one token at a time and any chunks, neighbours, threads and kernels."""
    lengths = [150, 1, 17, 64]
    alone = make(SPEC, type_, threads=1)
    expected = [every_bit(alone, branch) for branch in make_sequences(lengths, SPEC.vocab_size)]
    for threads in (1, 2, 3):
        backend = make(SPEC, type_, threads, instruction_set)
        check_in_random_steps(backend, make_sequences(lengths, SPEC.vocab_size), expected, seed=threads)


@pytest.mark.parametrize(
    ("exits", "message"),
    [
        (int32(1, 1), r"exits has 2 elements and needs 3, one for each of rows"),
        (int32(), r"exits has 0 elements and needs 3, one for each of rows"),
        (int32(4, 4, 0), r"exits\[2\] is 0, allowed are 1 to 4"),
        (int32(-1, 1, 1), r"exits\[0\] is -1, allowed are 1 to 4"),
        (int32(1, 5, 2**31 - 1), r"exits\[1\] is 5, allowed are 1 to 4"),
    ],
)
def test_malformed_exits_are_refused_and_harm_nothing(exits: Int32Array, message: str) -> None:
    backend = make(SPEC)
    (branch,) = make_sequences([3], SPEC.vocab_size)
    step = step_of([(branch, 3)])
    before = rows_of(backend, step)
    with pytest.raises(BackendError, match=message):
        backend.forward(replace(step, exits=exits))
    with pytest.raises(BackendError):
        reference(SPEC, TensorType.F32, int8_activations=False).forward(replace(step, exits=exits))
    assert rows_of(backend, step).tobytes() == before.tobytes()


def test_as_many_rows_as_a_step_may_hold_tokens() -> None:
    backend = make(SPEC, max_step_tokens=8)
    (branch,) = make_sequences([2], SPEC.vocab_size)
    step = at_every_exit(step_of([(branch, 2)]))
    assert rows_of(backend, step).tobytes() == rows_of(make(SPEC), step).tobytes()
    assert step.exits is not None
    more = replace(step, rows=np.append(step.rows, int32(0)), exits=np.append(step.exits, int32(1)))
    with pytest.raises(BackendError, match="more rows are wanted than the 8 tokens"):
        backend.forward(more)
