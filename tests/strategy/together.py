"""Strategies for tests whose branches grow together, and what each gives by plain enumeration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.strategy.models import Alone, native
from unspool.backend.base import Float32Array
from unspool.sampling.distribution import Distribution
from unspool.strategy import Branches, RowResult, Strategy

Hypothesis = tuple[tuple[int, ...], float]
"""Tokens and their summed log-probability."""


class Beam(Strategy):
    """Every branch goes on with each of the ``per_row`` most probable tokens; the best ``width`` live.

    Tokens stay provisional until ``length`` of them are there; then all branches are committed at once.
    """

    together = True
    width = 1

    def __init__(self, beams: int, length: int, per_row: int = 2) -> None:
        self.beams, self.length, self.per_row = beams, length, per_row
        self.sums: dict[Any, float] = {}
        self.tokens: dict[Any, tuple[int, ...]] = {}
        self.grown = 0

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        self.grown += 1
        if self.tokens:
            assert sorted(map(id, self.tokens)) == sorted(id(row.branch) for row in frontier)
        offers = []
        for row in frontier:
            for token, logprob, _ in row.figures.best[: self.per_row]:
                tokens = (*self.tokens.get(row.branch, ()), token)
                offers.append((-(self.sums.get(row.branch, 0.0) + logprob), tokens, row))
        best = sorted(offers, key=lambda offer: offer[:2])[: self.beams]
        sums, texts = {}, {}
        for row in frontier:
            mine = [offer for offer in best if offer[2].branch is row.branch]
            places = [row.branch, *(branches.fork(row.branch) for _ in mine[1:])]
            if not mine:
                branches.drop(row.branch)
            for branch, (cost, tokens, _) in zip(places, mine, strict=False):
                branches.append(branch, tokens[-1], row.figures)
                sums[branch], texts[branch] = -cost, tokens
        self.sums, self.tokens = sums, texts
        if all(len(tokens) == self.length for tokens in texts.values()):
            for branch in texts:
                branches.finish(branch, "length")


def log_probabilities(row: Float32Array) -> list[float]:
    """[vocab_size] as the sampler reports them."""
    law = Distribution.of(np.arange(len(row), dtype=np.int32), row)
    values: list[float] = law.log_probabilities.astype(np.float32).tolist()
    return values


def enumerate_beam(
    row: Callable[[list[int]], Float32Array], beams: int, length: int, per_row: int = 2
) -> list[Hypothesis]:
    """What ``Beam`` gives: of all continuations of each length the best, best first."""
    live: list[Hypothesis] = [((), 0.0)]
    for _ in range(length):
        offers = []
        for tokens, total in live:
            logprobs = log_probabilities(row(list(tokens)))
            order = sorted(range(len(logprobs)), key=lambda t: (-logprobs[t], t))[:per_row]
            offers += [(-(total + logprobs[token]), (*tokens, token)) for token in order]
        live = [(tokens, -cost) for cost, tokens in sorted(offers)[:beams]]
    return live


class Lanes(Strategy):
    """``width`` samples, one token each at a time, none of them final before all have ``length``."""

    together = True

    def __init__(self, width: int, length: int, every: int = 0) -> None:
        self.width, self.length, self.every = width, length, every

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        for branch, token, figures, *_ in frontier:
            branches.append(branch, token, figures)
            count = len(branch.token_ids)
            if count == self.length:
                branches.finish(branch, "length")
            elif self.every and count % self.every == 0:
                branches.commit(branch)


def plain_rows(prompt: Sequence[int]) -> Callable[[list[int]], Float32Array]:
    """What follows a prompt and generated tokens, each sequence computed once and alone."""
    known: dict[tuple[int, ...], Float32Array] = {}

    def row(generated: list[int]) -> Float32Array:
        key = tuple(generated)
        if key not in known:
            known[key] = Alone(native()).row([*prompt, *generated])
        return known[key]

    return row
