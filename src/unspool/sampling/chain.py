"""The rules of a request in their order, and what they remember of each branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unspool.sampling.plan import NUM_VALUES
from unspool.sampling.rules import Custom, Facts, Memory, Rule, Witness


@dataclass(frozen=True)
class Chain:
    """A compiled chain: the rules that do something, in the order that they do it."""

    rules: tuple[Rule, ...] = ()

    @cached_property
    def kinds(self) -> npt.NDArray[np.int32]:
        """[C] ``RuleKind`` of each rule; of the caller's own ``NO_ENTRY``, which every backend refuses."""
        return np.array([rule.kind for rule in self.rules], np.int32)

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """[C, 3] parameters of each rule, before anything is generated."""
        return np.array([padded(rule.values) for rule in self.rules], np.float64).reshape(-1, NUM_VALUES)

    @cached_property
    def custom(self) -> int | None:
        """The place of the caller's own rules, which no backend knows; ``None`` where there are none."""
        places = [place for place, rule in enumerate(self.rules) if isinstance(rule, Custom)]
        return places[0] if places else None

    @cached_property
    def learns(self) -> bool:
        """Whether a rule goes by what was drawn before, and not only by which tokens were."""
        return any(isinstance(rule, Witness) for rule in self.rules)

    @cached_property
    def named(self) -> tuple[Rule, ...]:
        """The rules that an order may name: all but the witnesses."""
        return tuple(rule for rule in self.rules if not isinstance(rule, Witness))

    def memory(self, prompt: Sequence[int]) -> ChainMemory | None:
        """What the rules remember of a branch that has said nothing yet; ``None``: they need no memory."""
        memories = [rule.memory(prompt) for rule in self.rules]
        return ChainMemory(memories) if any(memory is not None for memory in memories) else None


def padded(values: Sequence[float]) -> tuple[float, ...]:
    """Values, and zeros in place of those that are missing."""
    return (*map(float, values), *(0.0,) * (NUM_VALUES - len(values)))


class ChainMemory:
    """What each rule of a chain remembers of one branch: a value that can be copied."""

    __slots__ = ("memories",)

    def __init__(self, memories: list[Memory | None]) -> None:
        self.memories = memories
        """[C] for each rule; ``None`` where it needs none."""

    def extend(self, token: int, facts: Facts) -> None:
        """Take in a token that the branch goes on with."""
        for memory in self.memories:
            if memory is not None:
                memory.extend(token, facts)

    def precede(self, token: int) -> None:
        """Take in one more token of the prompt, before anything is generated."""
        for memory in self.memories:
            if memory is not None:
                memory.precede(token)

    def fork(self) -> ChainMemory:
        """A memory of the same tokens that goes its own way."""
        return ChainMemory([None if memory is None else memory.fork() for memory in self.memories])
