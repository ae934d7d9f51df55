"""Proposers for tests: right, wrong, both at once, and none at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unspool.speculate import DraftTree


@dataclass
class Said:
    """Knows what a request's samples will say, and guesses it with mistakes.

    prompt: the request's. said: the tokens of each sample.
    length: of a guess. wrong: the chance that a guessed token is another one. trees: whether the truth is
    hidden in a random tree.
    """

    prompt: Sequence[int]
    said: Sequence[Sequence[int]]
    length: int = 4
    wrong: float = 0.0
    trees: bool = False
    seed: int = 0
    most: list[int] = field(default_factory=list)

    def propose(self, tokens: Sequence[int], most: int) -> DraftTree | None:
        self.most.append(most)
        generated = list(tokens[len(self.prompt) :])
        rng = np.random.default_rng([self.seed, *generated])
        at = len(generated)
        truths = [list(said[at : at + self.length]) for said in self.said if list(said[:at]) == generated]
        chain = [
            (token - 3 + int(rng.integers(1, 263))) % 263 + 3 if rng.random() < self.wrong else token
            for token in (truths[0] if truths else [])
        ]
        if not self.trees:
            return DraftTree.chain(chain) if chain else None
        return hidden_in_a_tree(chain, rng)


def hidden_in_a_tree(chain: Sequence[int], rng: np.random.Generator) -> DraftTree:
    """A random tree in which a chain's tokens follow each other; other nodes lie before and between."""
    tokens: list[int] = []
    parents: list[int] = []

    def add(token: int, parent: int) -> int:
        for node in range(len(tokens)):
            if (tokens[node], parents[node]) == (token, parent):
                return node
        tokens.append(token)
        parents.append(parent)
        return len(tokens) - 1

    last = -1
    for token in chain:
        for _ in range(int(rng.integers(0, 4))):
            add(int(rng.integers(3, 266)), int(rng.integers(-1, len(tokens))))
        last = add(token, last)
    for _ in range(int(rng.integers(0, 4))):
        add(int(rng.integers(3, 266)), int(rng.integers(-1, len(tokens))))
    return DraftTree(tokens, parents)


@dataclass
class Scripted:
    """Proposes whatever a function makes of the tokens so far, which need not be a draft."""

    make: Callable[[Sequence[int], int], Any]

    def propose(self, tokens: Sequence[int], most: int) -> Any:
        return self.make(tokens, most)
