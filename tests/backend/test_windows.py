"""Layers that see their last positions only, caps on scores, and queries scaled by something else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.backend.steps import advance, make_sequences, one_by_one, step_of
from tests.backend.test_cache_types import distance, make, reference_rows
from tests.backend.test_cpu import run_in_random_chunks
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from unspool import _native
from unspool.backend.cpu import CpuBackend
from unspool.errors import BackendError
from unspool.model.spec import LayerSpec, ModelSpec
from unspool.model.tensor import TensorType

SETS = _native.instruction_sets()
WINDOWS = [1, 15, 16, 17, 128, 129]
LENGTH = 290


def windowed(*windows: int, **changes: Any) -> ModelSpec:
    """A model with a layer for each window."""
    layers = tuple(LayerSpec(window=window) for window in windows)
    return tiny_spec(vocab_size=45, num_layers=len(layers), layers=layers, **changes)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_and_whole_attention_in_turn_equal_the_reference(window: int) -> None:
    spec = windowed(window, 0)
    (branch,) = make_sequences([LENGTH], spec.vocab_size)
    got = make(spec, "float32").forward(step_of([(branch, LENGTH)])).logits.numpy()
    assert distance(got, reference_rows(spec, branch)) < 1e-5
    whole = make(windowed(0, 0), "float32").forward(step_of([(branch, LENGTH)])).logits.numpy()
    assert got[:window].tobytes() == whole[:window].tobytes()
    assert np.all(np.abs(got[window:] - whole[window:]).max(axis=1) > 1e-2)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_row_is_that_of_its_window_alone(window: int) -> None:
    """To the bit whatever came before, and not when the first token of its window is another."""
    spec = windowed(window)
    backend = make(spec, "float16")
    (branch,) = make_sequences([LENGTH], spec.vocab_size)
    rows = backend.forward(step_of([(branch, LENGTH)])).logits.numpy().copy()
    for last in (window, 200, LENGTH - 1):
        first = last + 1 - window
        for changed, stays in ((slice(0, first), True), (slice(first, first + 1), False)):
            other = replace(branch, tokens=branch.tokens.copy())
            other.tokens[changed] = (other.tokens[changed] + 1) % spec.vocab_size
            row = backend.forward(step_of([(other, LENGTH)])).logits.numpy()[last]
            assert (row.tobytes() == rows[last].tobytes()) is stays, (last, changed)


@pytest.mark.parametrize("window", WINDOWS)
def test_rows_past_a_window_do_not_depend_on_how_they_are_computed(window: int) -> None:
    spec = windowed(window, 0, window + 3, attention_softcap=1.0)
    lengths = [LENGTH, 33]
    expected = one_by_one(make(spec, "float16", threads=1), make_sequences(lengths, spec.vocab_size))
    for instruction_set in SETS:
        for threads, largest in [(1, 290), (3, 60)]:
            backend = make(spec, "float16", threads=threads, instruction_set=instruction_set)
            branches = make_sequences(lengths, spec.vocab_size)
            run_in_random_chunks(backend, branches, largest)
            for branch, rows in zip(branches, expected, strict=True):
                assert np.stack(branch.logits).tobytes() == rows.tobytes(), (instruction_set, threads)


def test_a_window_beyond_the_context_is_none() -> None:
    (branch,) = make_sequences([LENGTH], 45)
    rows = [
        make(windowed(window), "float16").forward(step_of([(branch, LENGTH)])).logits.numpy().tobytes()
        for window in (0, LENGTH, LENGTH + 1, 2**30)
    ]
    assert len(set(rows)) == 1


@pytest.mark.parametrize("threads", [1, 7])
def test_blocks_left_of_every_window_may_be_gone(threads: int) -> None:
    spec = windowed(17, 30)
    (branch,) = make_sequences([LENGTH], spec.vocab_size)
    backend = make(spec, "float16", threads=threads)
    advance(backend, [(branch, LENGTH - 1)])
    step = step_of([(branch, 1)])
    expected = backend.forward(step).logits.numpy().tobytes()
    unseen = (LENGTH - 30) // 16
    gone = step.block_table.copy()
    gone[0, :unseen] = -1
    assert backend.forward(replace(step, block_table=gone)).logits.numpy().tobytes() == expected
    gone[0, unseen] = -1
    with pytest.raises(BackendError, match="block_table"):
        backend.forward(replace(step, block_table=gone))
    with pytest.raises(BackendError, match="block_table"):
        make(windowed(17, 0), "float16").forward(replace(step, block_table=gone))


@pytest.mark.parametrize("cap", [0.3, 1.0, 50.0])
def test_capped_scores_equal_the_reference(cap: float) -> None:
    """Small scores and large ones: both ways that the hyperbolic tangent is computed."""
    spec = windowed(0, 0, attention_softcap=cap)
    (branch,) = make_sequences([140], spec.vocab_size)
    got = make(spec, "float32").forward(step_of([(branch, 140)])).logits.numpy()
    assert distance(got, reference_rows(spec, branch)) < 1e-5


def test_a_scale_and_a_cap_are_seen_in_the_logits() -> None:
    (branch,) = make_sequences([40], 45)
    variants = [windowed(0, 0), windowed(0, 0, attention_scale=0.1), windowed(0, 0, attention_softcap=1.0)]
    rows = [make(spec, "float32").forward(step_of([(branch, 40)])).logits.numpy() for spec in variants]
    for spec, got in zip(variants, rows, strict=True):
        assert distance(got, reference_rows(spec, branch)) < 1e-5
    assert all(np.abs(a - b).max() > 1e-2 for a, b in pairwise([*rows, rows[0]]))


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": (LayerSpec(window=-1), LayerSpec())},
        {"layers": (LayerSpec(window=2**31 - 1), LayerSpec())},
        {"layers": (LayerSpec(),)},
        {"attention_softcap": -1.0},
        {"attention_softcap": float("nan")},
        {"attention_scale": float("inf")},
        {"attention_scale": -0.1},
    ],
)
def test_switches_that_cannot_be_are_refused(changes: dict[str, object]) -> None:
    spec = tiny_spec()
    tensors = make_tensors(random_weights(spec), TensorType.F32)
    with pytest.raises(BackendError):
        CpuBackend(replace(spec, **changes), tensors)  # type: ignore[arg-type]
