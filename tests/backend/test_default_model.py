"""The promise of equal bits, on a model that people use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.backend.steps import Branch, advance, make_sequences, one_by_one, step_of
from unspool import _native
from unspool.backend.base import Float32Array
from unspool.backend.cpu import CpuBackend
from unspool.model.loader import LoadedModel, load
from unspool.model.tensor import Tensor

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def loaded(default_model_path: Path) -> LoadedModel:
    return load(default_model_path)


def make(loaded: LoadedModel, threads: int, instruction_set: str = "auto") -> CpuBackend:
    backend = CpuBackend(loaded.spec, loaded.tensors, threads=threads, instruction_set=instruction_set)
    backend.allocate(128)
    return backend


def rows_in_company(backend: CpuBackend, tokens: list[int], chunk: int, company: int) -> Float32Array:
    """Full rows of a text that is computed in chunks, beside ``company`` branches that grow by one."""
    vocab_size = backend.spec.vocab_size
    branch = Branch(np.array(tokens, np.int32), np.arange(100, 124, dtype=np.int32)[::-1].copy())
    others = make_sequences([len(tokens)] * company, vocab_size)
    while branch.left:
        before, after = others[: company // 2], others[company // 2 :]
        run = [(branch, min(chunk, branch.left))]
        advance(backend, [*((o, 1) for o in before), *run, *((o, 1) for o in after)])
    return np.stack(branch.logits)


def expected_rows(loaded: LoadedModel, tokens: list[int]) -> Float32Array:
    branch = Branch(np.array(tokens, np.int32), np.arange(24, dtype=np.int32))
    (rows,) = one_by_one(make(loaded, threads=1), [branch])
    return rows


def test_full_rows_have_the_same_bits_however_they_are_computed(loaded: LoadedModel) -> None:
    tokens = loaded.tokenizer.encode(
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must be in want of a wife."
    )[:24]
    expected = expected_rows(loaded, tokens)
    for threads, chunk, company in [(2, 1, 0), (2, 24, 0), (1, 5, 3), (2, 7, 5), (2, 1, 2)]:
        rows = rows_in_company(make(loaded, threads), tokens, chunk, company)
        assert rows.tobytes() == expected.tobytes(), (threads, chunk, company)
    for instruction_set in _native.instruction_sets():
        if instruction_set != "portable":
            rows = rows_in_company(make(loaded, 2, instruction_set), tokens, 24, 0)
            assert rows.tobytes() == expected.tobytes(), instruction_set


def test_a_row_at_an_exit_is_that_of_the_model_cut_off_there(loaded: LoadedModel) -> None:
    """A text's last token after 1, half and all but one of the layers, beside its own last row."""
    tokens = np.array(loaded.tokenizer.encode("The capital of France is Paris. The capital of"), np.int32)
    branch, num_layers = Branch(tokens, np.arange(24, dtype=np.int32)), loaded.spec.num_layers
    step = step_of([(branch, len(tokens))])
    exits = [1, num_layers // 2, num_layers - 1, num_layers]
    last = np.full(4, len(tokens) - 1, np.int32)
    wanted = replace(step, rows=last, exits=np.array(exits, np.int32))
    rows = make(loaded, threads=2).forward(wanted).logits.numpy()
    for exit_, row in zip(exits, rows, strict=True):
        cut_off = CpuBackend(replace(loaded.spec, num_layers=exit_), layers_of(loaded, exit_), threads=1)
        cut_off.allocate(24)
        assert cut_off.forward(replace(step, rows=last[:1])).logits.numpy()[0].tobytes() == row.tobytes()


def layers_of(loaded: LoadedModel, count: int) -> dict[str, Tensor]:
    """The tensors of the first ``count`` layers, and those of none."""
    later = tuple(f"layers.{i}." for i in range(count, loaded.spec.num_layers))
    return {role: tensor for role, tensor in loaded.tensors.items() if not role.startswith(later)}


@pytest.mark.slow
def test_hundreds_of_rows_in_every_way(loaded: LoadedModel) -> None:
    """300 positions, past two of attention's pieces; portable kernels too."""
    text = "The quick brown fox jumps over the lazy dog, and the dog, being lazy, lets it. " * 20
    tokens = loaded.tokenizer.encode(text)[:300]
    expected = expected_rows(loaded, tokens)
    for threads in (1, 2):
        for chunk in (1, 2, 3, 7, 16, 32, 64, 200):
            rows = rows_in_company(make(loaded, threads), tokens, chunk, company=chunk % 4)
            assert rows.tobytes() == expected.tobytes(), (threads, chunk)
    for instruction_set in _native.instruction_sets():
        rows = rows_in_company(make(loaded, 2, instruction_set), tokens, 200, 0)
        assert rows.tobytes() == expected.tobytes(), instruction_set
