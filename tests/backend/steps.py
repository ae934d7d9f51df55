"""Steps for tests: sequences with block tables of their own, run in any chunks and company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unspool.backend.base import BLOCK_SIZE, Backend, Float32Array, Int32Array, StepBatch


@dataclass
class Branch:
    """One branch's tokens, its block table, and how much of it is in the cache."""

    tokens: Int32Array
    table: Int32Array
    cached: int = 0
    logits: list[Float32Array] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.tokens) - self.cached


def make_sequences(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[Branch]:
    """Random sequences over disjoint blocks in shuffled order, each with one block to spare."""
    rng = np.random.default_rng(seed)
    needed = [length // BLOCK_SIZE + 1 for length in lengths]
    blocks = rng.permutation(sum(needed)).astype(np.int32)
    starts = np.cumsum([0, *needed])
    return [
        Branch(rng.integers(0, vocab_size, length).astype(np.int32), blocks[starts[i] : starts[i + 1]])
        for i, length in enumerate(lengths)
    ]


def int32(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def step_of(runs: Sequence[tuple[Branch, int]], hidden: bool = False) -> StepBatch:
    """The next ``count`` tokens of each sequence, every one of whose rows is wanted."""
    positions = [np.arange(s.cached, s.cached + count, dtype=np.int32) for s, count in runs]
    starts = np.cumsum([0, *(count for _, count in runs)]).astype(np.int32)
    parents = [
        np.where(np.arange(c) == 0, -1, start - 1 + np.arange(c)).astype(np.int32)
        for start, (_, c) in zip(starts, runs, strict=False)
    ]
    width = max(len(s.table) for s, _ in runs)
    table = np.full((len(runs), width), -1, np.int32)
    for i, (s, _) in enumerate(runs):
        table[i, : len(s.table)] = s.table
    rows = np.arange(starts[-1], dtype=np.int32)
    return StepBatch(
        tokens=np.concatenate([s.tokens[s.cached : s.cached + c] for s, c in runs]),
        positions=np.concatenate(positions),
        slots=np.concatenate(
            [
                s.table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
                for (s, _), p in zip(runs, positions, strict=True)
            ]
        ).astype(np.int32),
        parents=np.concatenate(parents),
        run_starts=starts,
        block_table=table,
        context_lens=np.array([s.cached for s, _ in runs], np.int32),
        rows=rows,
        hidden_rows=rows.copy() if hidden else int32(),
    )


def advance(backend: Backend, runs: Sequence[tuple[Branch, int]]) -> None:
    """Run one step and keep each sequence's rows."""
    logits = backend.forward(step_of(runs)).logits.numpy()
    at = 0
    for sequence, count in runs:
        sequence.logits.extend(logits[at : at + count].copy())
        sequence.cached += count
        at += count


def one_by_one(backend: Backend, sequences: Sequence[Branch]) -> list[Float32Array]:
    """Every row of every sequence, each token in a step of its own."""
    for sequence in sequences:
        while sequence.left:
            advance(backend, [(sequence, 1)])
    return [np.stack(s.logits) for s in sequences]
