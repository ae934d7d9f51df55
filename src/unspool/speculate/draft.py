"""Tokens that are guessed ahead, as a tree, and who guesses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Protocol

from unspool.errors import ParameterError


@dataclass(frozen=True)
class DraftTree:
    """Guesses at what follows a branch's last token: node i is ``tokens[i]`` after node ``parents[i]``.

    A parent comes before its children; -1 is the branch's last token. Siblings differ in their tokens.
    Raises ``ParameterError`` for a tree that is none.
    """

    tokens: Sequence[int]
    parents: Sequence[int]

    def __post_init__(self) -> None:
        for name in ("tokens", "parents"):
            try:
                object.__setattr__(self, name, tuple(map(index, getattr(self, name))))
            except TypeError:
                raise ParameterError(f"the {name} of a draft must be whole numbers") from None
        if len(self.tokens) != len(self.parents):
            raise ParameterError(f"a draft of {len(self.tokens)} tokens has {len(self.parents)} parents")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ParameterError(
                    f"the parent of draft node {node} must be from -1 to {node - 1}: {parent}"
                )
        if len(set(zip(self.parents, self.tokens, strict=True))) < len(self.tokens):
            raise ParameterError("two siblings of a draft are the same token")

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """One guess after another."""
        return cls(tokens, range(-1, len(tokens) - 1))

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The node that guesses ``token`` after ``node`` (-1: after the branch's last token)."""
        for i in range(node + 1, len(self.tokens)):
            if self.parents[i] == node and self.tokens[i] == token:
                return i
        return None

    def depths(self) -> list[int]:
        """[nodes] how many guesses lead to each node, itself included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def first(self, count: int) -> DraftTree:
        """The tree's first ``count`` nodes, which are a tree."""
        return self if count >= len(self) else DraftTree(self.tokens[:count], self.parents[:count])


class Proposer(Protocol):
    """Guesses what a branch will say; a wrong guess costs time and changes nothing."""

    def propose(self, tokens: Sequence[int], most: int) -> DraftTree | None:
        """A draft of at most ``most`` tokens after ``tokens`` (prompt and generated), or None.

        A longer one is cut to its first nodes.
        """
        ...
