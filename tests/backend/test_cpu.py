"""The native backend computes what the reference defines, and the same bits however it is asked."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.backend.steps import Branch, advance, int32, make_sequences, one_by_one, step_of
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import make_tensors, random_weights, stored_weights, tiny_spec
from unspool import _native
from unspool.backend.base import Float32Array, StepBatch
from unspool.backend.cpu import CpuBackend
from unspool.errors import BackendError, ParameterError
from unspool.model.spec import ModelSpec, Rotary
from unspool.model.tensor import TensorType

FLOATS = [TensorType.F32, TensorType.F16, TensorType.BF16]
QUANTIZED = [TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1]
SETS = _native.instruction_sets()

SHAPES = {
    "grouped": tiny_spec(),
    "three heads a group, wide heads": tiny_spec(
        hidden_size=96,
        num_heads=9,
        num_kv_heads=3,
        head_dim=32,
        rope_dim=32,
        vocab_size=333,
        tied_embeddings=False,
    ),
    "one head, half rotated": tiny_spec(
        hidden_size=32,
        intermediate_size=64,
        num_heads=1,
        num_kv_heads=1,
        head_dim=96,
        rope_dim=48,
        vocab_size=17,
    ),
}


def make(
    spec: ModelSpec,
    type_: TensorType,
    threads: int = 2,
    instruction_set: str | None = None,
    num_blocks: int = 64,
    seed: int = 0,
) -> CpuBackend:
    tensors = make_tensors(random_weights(spec, seed), type_)
    backend = CpuBackend(spec, tensors, threads=threads, instruction_set=instruction_set)
    backend.allocate(num_blocks)
    return backend


def reference(spec: ModelSpec, type_: TensorType) -> ReferenceBackend:
    weights = stored_weights(random_weights(spec), type_)
    backend = ReferenceBackend(
        spec, weights, cache_dtype=np.float16, int8_activations=type_ in QUANTIZED, max_step_tokens=512
    )
    backend.allocate(64)
    return backend


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("type_", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_hidden_states_equal_the_reference(
    shape: str, type_: TensorType, instruction_set: str
) -> None:
    spec = SHAPES[shape]
    wanted, native = reference(spec, type_), make(spec, type_, instruction_set=instruction_set)
    (branch,) = make_sequences([45], spec.vocab_size)
    step = step_of([(branch, 45)], hidden=True)
    expected, got = wanted.forward(step), native.forward(step)
    for ours, theirs in [(got.logits.numpy(), expected.logits.numpy()), (got.hidden, expected.hidden)]:
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
        assert np.abs(ours - theirs).mean() < 2e-4


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_integer_products_equal_the_reference_that_rounds_alike(
    shape: str, type_: TensorType, instruction_set: str
) -> None:
    """Sequences of one or two tokens. An activation halfway between two int8 values may be rounded to the
    other one, and then that row moves by a hundredth of its range; the others agree to float32's precision.
    """
    spec = SHAPES[shape]
    wanted, native = reference(spec, type_), make(spec, type_, instruction_set=instruction_set)
    branches = make_sequences([1, 2] * 20, spec.vocab_size)
    step = step_of([(b, len(b.tokens)) for b in branches])
    difference = np.abs(native.forward(step).logits.numpy() - wanted.forward(step).logits.numpy())
    assert np.median(difference) < 5e-5
    assert difference.mean() < 1e-2
    assert difference.max() < 0.4


@pytest.mark.parametrize(
    "type_", [TensorType.F16, TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1], ids=lambda t: t.name
)
def test_every_instruction_set_and_thread_count_gives_the_same_bits(type_: TensorType) -> None:
    spec = SHAPES["three heads a group, wide heads"]
    results = []
    for instruction_set in SETS:
        for threads in (1, 2, 3):
            backend = make(spec, type_, threads, instruction_set)
            branches = make_sequences([150, 20], spec.vocab_size)
            advance(backend, [(branches[0], 140), (branches[1], 13)])
            for _ in range(7):
                advance(backend, [(b, 1) for b in branches])
            results.append([np.stack(b.logits).tobytes() for b in branches])
    assert all(result == results[0] for result in results[1:])


def test_rows_do_not_depend_on_chunks_batches_or_threads() -> None:
    """0 bits of difference between one token at a time and any mix of chunks and neighbours."""
    spec = SHAPES["grouped"]
    lengths = [300, 1, 17, 129, 64]
    expected = one_by_one(make(spec, TensorType.Q4_1, threads=1), make_sequences(lengths, spec.vocab_size))
    for threads, largest in [(1, 200), (2, 7), (2, 40), (2, 256)]:
        backend = make(spec, TensorType.Q4_1, threads)
        branches = make_sequences(lengths, spec.vocab_size)
        run_in_random_chunks(backend, branches, largest)
        for branch, rows in zip(branches, expected, strict=True):
            assert np.stack(branch.logits).tobytes() == rows.tobytes()


def run_in_random_chunks(backend: CpuBackend, branches: Sequence[Branch], largest: int) -> None:
    """Steps of random branches in random order, each with a chunk of up to ``largest`` tokens."""
    rng = np.random.default_rng(largest)
    while waiting := [b for b in branches if b.left]:
        chosen = rng.permutation(len(waiting))[: rng.integers(1, len(waiting) + 1)]
        advance(
            backend,
            [(b, int(rng.integers(1, min(largest, b.left) + 1))) for b in (waiting[i] for i in chosen)],
        )


def test_rows_do_not_depend_on_which_blocks_hold_them() -> None:
    spec = SHAPES["grouped"]
    backend = make(spec, TensorType.Q8_0)
    (first,) = make_sequences([100], spec.vocab_size)
    (second,) = make_sequences([100], spec.vocab_size)
    second.table = (63 - second.table).astype(np.int32)
    for branch in (first, second):
        advance(backend, [(branch, 100)])
    assert np.stack(first.logits).tobytes() == np.stack(second.logits).tobytes()


@pytest.mark.parametrize("context", [0, 5, 16, 127, 140])
def test_a_draft_tree_gives_each_path_the_bits_of_a_plain_run(context: int) -> None:
    spec = SHAPES["three heads a group, wide heads"]
    backend = make(spec, TensorType.Q4_1)
    (prefix,) = make_sequences([context + 1], spec.vocab_size)
    parents = [-1, 0, 0, 1, 1, 2, 3, -1, 7]  # two roots; 0 has children 1 and 2; paths up to 4 deep
    tokens = np.arange(3, 3 + len(parents), dtype=np.int32)
    if context:
        advance(backend, [(prefix, context)])
    tree = tree_rows(backend, prefix, context, tokens, parents)
    for leaf in range(len(parents)):
        path = path_to(leaf, parents)
        plain = Branch(
            np.concatenate([prefix.tokens[:context], tokens[path]]), np.arange(30, 45, dtype=np.int32)
        )
        advance(backend, [(plain, context + len(path))])
        assert tree[leaf].tobytes() == plain.logits[-1].tobytes()


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tree_rows(
    backend: CpuBackend, prefix: Branch, context: int, tokens: np.ndarray, parents: Sequence[int]
) -> Float32Array:
    """Rows of a draft tree whose tokens lie in scattered slots of blocks 50 and on."""
    depth = [len(path_to(i, parents)) - 1 for i in range(len(parents))]
    slots = (np.random.default_rng(0).permutation(100)[: len(parents)] + 50 * 16).astype(np.int32)
    table = np.concatenate([prefix.table, [-1]])[None].astype(np.int32)
    step = StepBatch(
        tokens=tokens.astype(np.int32),
        positions=np.array([context + d for d in depth], np.int32),
        slots=slots,
        parents=np.array(parents, np.int32),
        run_starts=int32(0, len(parents)),
        block_table=table,
        context_lens=int32(context),
        rows=np.arange(len(parents), dtype=np.int32),
        hidden_rows=int32(),
    )
    return backend.forward(step).logits.numpy().copy()


def test_a_kept_path_moved_into_order_continues_as_if_it_had_been_run_plainly() -> None:
    spec = SHAPES["grouped"]
    backend = make(spec, TensorType.Q8_0)
    (branch,) = make_sequences([40], spec.vocab_size)
    advance(backend, [(branch, 20)])
    tokens, parents = np.array([9, 10, 11, 12], np.int32), [-1, 0, 0, 2]
    tree_rows(backend, branch, 20, tokens, parents)
    kept = path_to(3, parents)
    slots = (np.random.default_rng(0).permutation(100)[: len(parents)] + 50 * 16).astype(np.int32)
    positions = 20 + np.arange(len(kept))
    targets = branch.table[positions // 16] * 16 + positions % 16
    backend.copy_slots(np.stack([slots[kept], targets], axis=1).astype(np.int32))
    moved = Branch(
        np.concatenate([branch.tokens[:20], tokens[kept], [5]]).astype(np.int32), branch.table, cached=23
    )
    advance(backend, [(moved, 1)])
    plain = Branch(moved.tokens, np.arange(40, 44, dtype=np.int32))
    advance(backend, [(plain, 24)])
    assert moved.logits[-1].tobytes() == plain.logits[-1].tobytes()


def test_what_lies_in_unused_slots_never_reaches_a_row() -> None:
    """Stale keys and values, infinite or not, are neither read nor multiplied by zero."""
    spec = SHAPES["grouped"]
    huge = make_tensors(random_weights(spec, std=3e4), TensorType.F32)
    poisoned = CpuBackend(spec, huge, threads=2)
    poisoned.allocate(64)
    (again,) = make_sequences([20], spec.vocab_size)
    poison = Branch(np.arange(48, dtype=np.int32), np.array([*again.table, 9], np.int32))
    advance(poisoned, [(poison, 48)])
    fresh = poisoned.forward(step_of([(again, 20)])).logits.numpy()[:1].copy()
    untouched = CpuBackend(spec, huge, threads=2)
    untouched.allocate(64)
    assert untouched.forward(step_of([(again, 20)])).logits.numpy()[:1].tobytes() == fresh.tobytes()


MALFORMED = {
    "token beyond the vocabulary": {"tokens": int32(0, 99999)},
    "negative token": {"tokens": int32(-1, 0)},
    "slot beyond the cache": {"slots": int32(0, 64 * 16)},
    "two tokens in one slot": {"slots": int32(0, 0)},
    "position out of line": {"positions": int32(0, 2)},
    "parent that comes later": {"parents": int32(1, 0)},
    "parent of another run": {"parents": int32(-1, 5)},
    "context beyond the table": {"context_lens": int32(500), "positions": int32(500, 501)},
    "negative context": {"context_lens": int32(-1), "positions": int32(-1, 0)},
    "unmapped context": {"context_lens": int32(3), "positions": int32(3, 4), "block_table": int32(-1)[None]},
    "row beyond the step": {"rows": int32(2)},
    "hidden row beyond the step": {"hidden_rows": int32(-1)},
    "empty run": {"run_starts": int32(0, 0)},
    "arrays of unequal length": {"parents": int32(-1)},
    "no tokens": {name: int32() for name in ("tokens", "positions", "slots", "parents")},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_step_is_refused_and_harms_nothing(what: str) -> None:
    spec = SHAPES["grouped"]
    backend = make(spec, TensorType.Q8_0)
    good = StepBatch(
        tokens=int32(1, 2),
        positions=int32(0, 1),
        slots=int32(0, 1),
        parents=int32(-1, 0),
        run_starts=int32(0, 2),
        block_table=int32(0)[None],
        context_lens=int32(0),
        rows=int32(1),
        hidden_rows=int32(),
    )
    before = backend.forward(good).logits.numpy().tobytes()
    with pytest.raises(BackendError):
        backend.forward(replace(good, **MALFORMED[what]))
    assert backend.forward(good).logits.numpy().tobytes() == before


def test_a_step_of_more_tokens_than_agreed_is_refused() -> None:
    spec = SHAPES["grouped"]
    backend = CpuBackend(spec, make_tensors(random_weights(spec), TensorType.F32), max_step_tokens=8)
    backend.allocate(4)
    (branch,) = make_sequences([9], spec.vocab_size)
    with pytest.raises(BackendError, match="9 tokens, allowed are 1 to 8"):
        advance(backend, [(branch, 9)])


def test_tensors_that_do_not_fit_are_refused_by_role() -> None:
    spec = SHAPES["grouped"]
    tensors = make_tensors(random_weights(spec), TensorType.Q8_0)
    missing = {role: t for role, t in tensors.items() if role != "layers.1.down"}
    with pytest.raises(BackendError, match=r"layers\.1\.down"):
        CpuBackend(spec, missing)
    with pytest.raises(BackendError, match=r"layers\.0\.gate.* 96 x 64.* 128 x 64"):
        CpuBackend(replace(spec, intermediate_size=128), tensors)
    short = dict(tensors, embedding=replace(tensors["embedding"], data=tensors["embedding"].data[:-1]))
    with pytest.raises(BackendError, match="embedding"):
        CpuBackend(spec, short)


@pytest.mark.parametrize("role", ["layers.1.attention_norm", "final_norm"])
def test_a_norm_that_is_not_finite_is_refused(role: str) -> None:
    spec = SHAPES["grouped"]
    tensors = make_tensors(random_weights(spec), TensorType.Q8_0)
    damaged = np.full(spec.hidden_size, np.inf, np.float32).view(np.uint8)
    with pytest.raises(BackendError, match=f"{role}.*not finite"):
        CpuBackend(spec, dict(tensors, **{role: replace(tensors[role], data=damaged)}))


def test_tensors_at_odd_addresses_give_the_same_bits() -> None:
    spec = replace(SHAPES["grouped"], tied_embeddings=False)
    for type_ in (*FLOATS, *QUANTIZED):
        tensors = make_tensors(random_weights(spec), type_)
        moved = {}
        for role, tensor in tensors.items():
            room = np.empty(len(tensor.data) + 1, np.uint8)
            room[1:] = tensor.data
            moved[role] = replace(tensor, data=room[1:])
        results = []
        for each in (tensors, moved):
            backend = CpuBackend(spec, each, threads=2)
            backend.allocate(4)
            results.append(backend.forward(first_step(5)).logits.numpy().tobytes())
        assert results[0] == results[1]


def test_bytes_that_are_not_contiguous_are_refused_not_copied_and_forgotten() -> None:
    spec = SHAPES["grouped"]
    tensors = make_tensors(random_weights(spec), TensorType.F32)
    strided = np.repeat(tensors["embedding"].data, 2)[::2]
    with pytest.raises(BackendError, match=r"embedding.*contiguous"):
        CpuBackend(spec, dict(tensors, embedding=replace(tensors["embedding"], data=strided)))


@pytest.mark.parametrize(
    "type_", [TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q8_0, TensorType.Q4_1]
)
def test_weights_that_are_not_finite_are_refused(type_: TensorType) -> None:
    spec = SHAPES["grouped"]
    tensors = make_tensors(random_weights(spec), type_)
    data = tensors["layers.1.value"].data.copy()
    data[:4] = 255  # all ones: NaN in every float format, and in a block's scale
    damaged = dict(tensors, **{"layers.1.value": replace(tensors["layers.1.value"], data=data)})
    with pytest.raises(BackendError, match=r"layers\.1\.value.*not finite"):
        CpuBackend(spec, damaged)


@pytest.mark.parametrize("threads", [0, -1, 1000, 1.5, True])
def test_threads_out_of_range_are_refused(threads: int) -> None:
    spec = SHAPES["grouped"]
    with pytest.raises(ParameterError, match="threads"):
        CpuBackend(spec, make_tensors(random_weights(spec), TensorType.F32), threads=threads)


def test_an_unknown_instruction_set_is_refused_with_what_there_is() -> None:
    with pytest.raises(BackendError, match="portable"):
        make(SHAPES["grouped"], TensorType.F32, instruction_set="mmx")


def first_step(count: int = 1, **changes: Any) -> StepBatch:
    """The first tokens of a sequence that lies in the first blocks."""
    step = StepBatch(
        tokens=np.arange(count, dtype=np.int32),
        positions=np.arange(count, dtype=np.int32),
        slots=np.arange(count, dtype=np.int32),
        parents=np.arange(-1, count - 1, dtype=np.int32),
        run_starts=int32(0, count),
        block_table=np.arange(4, dtype=np.int32)[None],
        context_lens=int32(0),
        rows=np.arange(count, dtype=np.int32),
        hidden_rows=int32(),
    )
    return replace(step, **changes)


@pytest.mark.parametrize("name", [field.name for field in fields(StepBatch)])
def test_arrays_of_another_type_are_refused_by_name_not_cut_to_fit(name: str) -> None:
    backend = make(SHAPES["grouped"], TensorType.Q8_0)
    full = first_step(2, exits=int32(1, 2))
    right = getattr(full, name)
    wrong: list[Any] = [right.astype(np.int64), right.astype(np.float32), right.tolist(), right[..., None]]
    wrong.append(np.repeat(np.atleast_1d(int32(0, 0)), 4)[::2])  # of the right type, and not contiguous
    for array in wrong:
        with pytest.raises(BackendError, match=name):
            backend.forward(replace(full, **{name: array}))
    not_pairs: list[Any] = [int32(0, 1), np.zeros((1, 2)), np.zeros((1, 3), np.int32)]
    for pairs in (*not_pairs, np.full((1, 2), 64 * 16, np.int32)):
        with pytest.raises(BackendError, match="slot"):
            backend.copy_slots(pairs)


@pytest.mark.parametrize("num_blocks", [-1, 2**27, 2**31 - 1])
def test_a_cache_of_a_size_that_cannot_be_is_refused_and_the_old_one_stays(num_blocks: int) -> None:
    backend = make(SHAPES["grouped"], TensorType.Q8_0)
    expected = backend.forward(first_step()).logits.numpy().tobytes()
    with pytest.raises(BackendError, match="blocks"):
        backend.allocate(num_blocks)
    assert backend.forward(first_step()).logits.numpy().tobytes() == expected


@pytest.mark.parametrize("max_step_tokens", [0, -1, 2**30])
def test_a_step_of_a_size_that_cannot_be_is_refused(max_step_tokens: int) -> None:
    tensors = make_tensors(random_weights(SHAPES["grouped"]), TensorType.F32)
    with pytest.raises(BackendError, match="a step holds 1 to"):
        CpuBackend(SHAPES["grouped"], tensors, max_step_tokens=max_step_tokens)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_layers": 2**31 - 1},
        {"num_heads": 2**30, "num_kv_heads": 1, "head_dim": 512},
        {"rotaries": (Rotary("halves", (1.0,) * 1000),)},
        {"head_dim": 528},
        {"hidden_size": 24},
        {"num_kv_heads": 3},
        {"vocab_size": 0},
        {"vocab_size": 2**31 - 1},
        {"rotaries": ()},
        {"rotaries": (Rotary("halves", (float("nan"),)),)},
        {"norm_epsilon": float("nan")},
    ],
)
def test_sizes_beyond_the_kernels_are_refused_before_anything_is_allocated(sizes: dict[str, Any]) -> None:
    spec = SHAPES["grouped"]
    with pytest.raises(BackendError):
        CpuBackend(replace(spec, **sizes), make_tensors(random_weights(spec), TensorType.F32))


def test_logits_that_are_held_stay_readable_after_larger_steps_and_after_the_backend() -> None:
    backend = make(SHAPES["grouped"], TensorType.F32)
    held = [backend.forward(first_step(count)).logits.numpy() for count in (1, 2, 3, 17, 40, 64, 5)]
    del backend
    gc.collect()
    assert [rows.shape[0] for rows in held] == [1, 2, 3, 17, 40, 64, 5]
    assert all(np.isfinite(rows).all() for rows in held)


def test_logits_are_a_read_only_view() -> None:
    spec = SHAPES["grouped"]
    backend = make(spec, TensorType.F32)
    (branch,) = make_sequences([3], spec.vocab_size)
    logits = backend.forward(step_of([(branch, 3)])).logits.numpy()
    assert logits.shape == (3, spec.vocab_size)
    with pytest.raises(ValueError, match="read-only"):
        logits[0, 0] = 0
