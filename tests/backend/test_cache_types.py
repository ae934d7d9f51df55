"""Every type of the cache: what the reference that rounds alike defines, and the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.backend.steps import Branch, advance, make_sequences, one_by_one, step_of
from tests.backend.test_cpu import path_to, run_in_random_chunks, tree_rows
from tests.reference.llama import ROUNDINGS, ReferenceBackend
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from unspool import _native
from unspool.backend.base import Float32Array
from unspool.backend.cpu import CpuBackend
from unspool.cache.size import CACHE_TYPES, CacheType
from unspool.errors import ParameterError
from unspool.model.spec import LayerSpec, ModelSpec
from unspool.model.tensor import TensorType

SETS = _native.instruction_sets()
SHAPES = {
    "grouped": tiny_spec(vocab_size=45),
    "three heads a group, heads of 96": tiny_spec(
        hidden_size=32, num_heads=9, num_kv_heads=3, head_dim=96, rope_dim=96, vocab_size=33
    ),
    "thirteen heads on one, capped, a window": tiny_spec(
        hidden_size=32,
        num_heads=13,
        num_kv_heads=1,
        vocab_size=17,
        attention_softcap=1.0,
        layers=(LayerSpec(window=20), LayerSpec()),
    ),
}
SPEC = SHAPES["grouped"]


def make(
    spec: ModelSpec,
    cache_type: CacheType,
    type_: TensorType = TensorType.F32,
    threads: int = 2,
    instruction_set: str | None = None,
) -> CpuBackend:
    backend = CpuBackend(
        spec,
        make_tensors(random_weights(spec), type_),
        threads=threads,
        instruction_set=instruction_set,
        cache_type=cache_type,
    )
    backend.allocate(64)
    return backend


def reference_rows(spec: ModelSpec, branch: Branch, cache_type: CacheType | None = None) -> Float32Array:
    """Float64 arithmetic on keys and values rounded to a type, or as they are."""
    rounding = ROUNDINGS[cache_type] if cache_type else None
    backend = ReferenceBackend(spec, random_weights(spec), rounding=rounding, max_step_tokens=512)
    backend.allocate(64)
    return backend.forward(step_of([(branch, len(branch.tokens))])).logits.numpy()


def distance(ours: Float32Array, theirs: Float32Array) -> float:
    """The largest difference, as a share of the largest logit."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_equal_the_reference_that_rounds_alike(shape: str, cache_type: CacheType) -> None:
    """And not the one that rounds nothing, unless nothing is rounded.

    On average: a number halfway between two of the type may be rounded to the other one.
    """
    spec = SHAPES[shape]
    (branch,) = make_sequences([45], spec.vocab_size)
    expected, exact = reference_rows(spec, branch, cache_type), reference_rows(spec, branch)
    for instruction_set in SETS:
        backend = make(spec, cache_type, instruction_set=instruction_set)
        got = backend.forward(step_of([(branch, 45)])).logits.numpy()
        if cache_type == "float32":
            assert distance(got, exact) < 1e-5
        else:
            assert 10 * np.abs(got - expected).mean() < np.abs(got - exact).mean()


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_rows_do_not_depend_on_how_they_are_computed(cache_type: CacheType) -> None:
    """Whole, in chunks, one by one, in company, by any number of threads and any instruction set."""
    spec = SHAPES["three heads a group, heads of 96"]
    lengths = [150, 1, 17, 64]
    expected = one_by_one(
        make(spec, cache_type, TensorType.Q8_0, threads=1), make_sequences(lengths, spec.vocab_size)
    )
    for instruction_set in SETS:
        for threads, largest in [(1, 200), (2, 7), (3, 60)]:
            backend = make(spec, cache_type, TensorType.Q8_0, threads, instruction_set)
            branches = make_sequences(lengths, spec.vocab_size)
            run_in_random_chunks(backend, branches, largest)
            for branch, rows in zip(branches, expected, strict=True):
                assert np.stack(branch.logits).tobytes() == rows.tobytes(), (instruction_set, threads)


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_tree_gives_each_path_the_bits_of_a_plain_run(shape: str, cache_type: CacheType) -> None:
    """Before the context's blocks, and past a window that ends in the middle of them."""
    spec = SHAPES[shape]
    backend = make(spec, cache_type)
    parents = [-1, 0, 0, 1, 1, 2, 3, -1, 7]
    tokens = np.arange(3, 3 + len(parents), dtype=np.int32)
    for context in (5, 140):
        (prefix,) = make_sequences([context + 1], spec.vocab_size)
        advance(backend, [(prefix, context)])
        tree = tree_rows(backend, prefix, context, tokens, parents)
        for leaf in range(len(parents)):
            path = path_to(leaf, parents)
            plain = Branch(
                np.concatenate([prefix.tokens[:context], tokens[path]]), np.arange(30, 45, dtype=np.int32)
            )
            advance(backend, [(plain, context + len(path))])
            assert tree[leaf].tobytes() == plain.logits[-1].tobytes()


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_copied_slots_hold_all_that_a_row_reads(shape: str, cache_type: CacheType) -> None:
    spec = SHAPES[shape]
    backend = make(spec, cache_type)
    (branch,) = make_sequences([41], spec.vocab_size)
    advance(backend, [(branch, 40)])
    copy = replace(branch, table=np.array([50, 40, 60], np.int32), logits=[])
    at = np.arange(40)
    pairs = np.stack([b.table[at // 16] * 16 + at % 16 for b in (branch, copy)], axis=1)
    backend.copy_slots(pairs.astype(np.int32))
    for each in (branch, copy):
        advance(backend, [(each, 1)])
    assert copy.logits[-1].tobytes() == branch.logits[-1].tobytes()


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_what_lies_in_unused_slots_never_reaches_a_row(cache_type: CacheType) -> None:
    """Stale keys and values, beyond float16's range or NaN, are neither read nor multiplied by zero."""
    weights = random_weights(SPEC)
    weights["blk.0.attn_v.weight"] *= 1e7
    weights["token_embd.weight"][7] = 1e30  # whose squares are beyond float32: keys and values are NaN
    backends = []
    for _ in range(2):
        backend = CpuBackend(SPEC, make_tensors(weights, TensorType.F32), threads=2, cache_type=cache_type)
        backend.allocate(64)
        backends.append(backend)
    (branch,) = make_sequences([20], SPEC.vocab_size)
    branch.tokens[branch.tokens == 7] = 8
    for token in (7, 9):
        poison = Branch(np.full(40, token, np.int32), np.array([*branch.table, 9], np.int32))
        advance(backends[0], [(poison, 40)])
        assert np.isfinite(poison.logits[-1]).all() == (token == 9)
        rows = [backend.forward(step_of([(branch, 20)])).logits.numpy().tobytes() for backend in backends]
        assert np.isfinite(np.frombuffer(rows[1], np.float32)).all()
        assert rows[0] == rows[1]


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_the_cache_takes_what_the_model_says(cache_type: CacheType) -> None:
    for spec in SHAPES.values():
        assert make(spec, cache_type).cache_bytes == 64 * 16 * spec.cache_bytes_per_token(cache_type)


@pytest.mark.parametrize("cache_type", ["fp16", "", None, 2, np.array(["int8", "int8"])])
def test_another_type_is_refused_with_what_there_is(cache_type: CacheType) -> None:
    with pytest.raises(ParameterError, match="float16, bfloat16, float32, int8"):
        make(SPEC, cache_type)
