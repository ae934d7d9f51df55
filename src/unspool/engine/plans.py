"""The arrays of a sampling plan, made from branches and what their rules remember."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unspool.engine.branch import Branch, facts_of
from unspool.sampling.chain import Chain, ChainMemory
from unspool.sampling.plan import DRAW, SamplePlan
from unspool.sampling.rules import Facts, NoiseSource
from unspool.sampling.rules.rule import NO_AMOUNTS, NO_TOKENS, Float32Array, Int32Array

NOTHING_LEARNED = Facts(0.0, 0.0)


class PlannedRow(NamedTuple):
    """One row of a plan, and the part of a chain that it goes through."""

    row: int
    """Which of a step's rows."""
    chain: Chain
    first: int
    """The first entry of the chain that is applied."""
    end: int
    """The first that is not any more."""
    memory: ChainMemory | None
    noise: NoiseSource
    given: int = DRAW
    """A token to give the figures of; ``DRAW``: draw one."""


class Recalled:
    """What the entries of a plan remember, entry by entry."""

    __slots__ = ("amounts", "places", "sizes", "tokens", "values")

    def __init__(self) -> None:
        self.tokens: list[Int32Array] = []
        self.amounts: list[Float32Array] = []
        self.sizes: list[int] = []
        """How many tokens each entry has."""
        self.places: list[int] = []
        """The entries whose values have changed."""
        self.values: list[tuple[float, ...]] = []
        """Those values."""

    def add(self, memory: ChainMemory | None, first: int, end: int) -> None:
        """Take in entries ``first..end-1`` of a chain."""
        if memory is None:
            self.sizes += [0] * (end - first)
            return
        for remembered in memory.memories[first:end]:
            if remembered is None:
                self.sizes.append(0)
                continue
            if remembered.values is not None:
                self.places.append(len(self.sizes))
                self.values.append(remembered.values)
            tokens = remembered.tokens
            self.sizes.append(len(tokens))
            if len(tokens):
                amounts = remembered.amounts
                self.tokens.append(tokens.copy())  # the memory may go on before the plan is whole
                self.amounts.append(amounts if len(amounts) else np.zeros(len(tokens), np.float32))

    def put(self, plan: SamplePlan) -> None:
        """Write everything into a plan of the same entries."""
        plan.token_starts = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=plan.token_starts[1:])
        plan.tokens = np.concatenate(self.tokens) if self.tokens else NO_TOKENS
        plan.amounts = np.concatenate(self.amounts) if self.amounts else NO_AMOUNTS
        for place, values in zip(self.places, self.values, strict=True):
            plan.values[place, : len(values)] = values


Entries = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]


def entries_of(chain: Chain, first: int, end: int) -> Entries:
    """Kinds and values of entries ``first..end-1`` of a chain."""
    own = chain.custom
    assert own is None or not first <= own < end, "a caller's own rules are no entry of a plan"
    return chain.kinds[first:end], chain.values[first:end]


def plan_of(planned: Iterable[PlannedRow], num_logprobs: int = 0) -> SamplePlan:
    """A plan of any rows, at least one.

    A row's memory is read before the next row is asked for: it may have gone on by then.
    """
    recalled, rows = Recalled(), []
    for row in planned:
        recalled.add(row.memory, row.first, row.end)
        rows.append(row)
    kinds, values = zip(*(entries_of(row.chain, row.first, row.end) for row in rows), strict=True)
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([row.end - row.first for row in rows], out=starts[1:])
    plan = SamplePlan(
        rows=np.array([row.row for row in rows], np.int32),
        chain_starts=starts,
        kinds=np.concatenate(kinds),
        values=np.concatenate(values),
        token_starts=np.zeros(1, np.int64),
        tokens=NO_TOKENS,
        amounts=NO_AMOUNTS,
        keys=np.array([row.noise.key for row in rows], np.uint64),
        positions=np.array([row.noise.position for row in rows], np.int32),
        sample_indices=np.array([row.noise.sample_index for row in rows], np.int32),
        given=np.array([row.given for row in rows], np.int32),
        num_logprobs=num_logprobs,
    )
    recalled.put(plan)
    return plan


class PlanBuilder:
    """Makes the plan of sampling a step's rows; what only depends on which branches draw is kept."""

    def __init__(self) -> None:
        self._kept: tuple[list[Branch], SamplePlan, bool] | None = None  # one value, whole at any interrupt

    def build(self, branches: list[Branch], nodes: Sequence[int], rows: Sequence[int]) -> SamplePlan:
        """Draw after each node of a branch's draft (-1: after its last token) from the row of that number."""
        if self._kept is None or self._kept[0] != branches:
            self._kept = (branches, self._of(branches), any(b.memory is not None for b in branches))
        _, plan, remembers = self._kept
        whole = np.array([*rows, *map(position_at, branches, nodes)], dtype=np.int32)
        plan.rows, plan.positions = whole[: len(rows)], whole[len(rows) :]
        if remembers:
            recalled = Recalled()
            for branch, node in zip(branches, nodes, strict=True):
                recalled.add(memory_at(branch, node), 0, len(branch.request.chain.rules))
            recalled.put(plan)
        return plan

    def _of(self, branches: Sequence[Branch]) -> SamplePlan:
        requests = [branch.request for branch in branches]
        chains = [request.chain for request in requests]
        starts = np.zeros(len(branches) + 1, dtype=np.int32)
        np.cumsum([len(chain.rules) for chain in chains], out=starts[1:])
        kinds, values = zip(*(entries_of(chain, 0, len(chain.rules)) for chain in chains), strict=True)
        return SamplePlan(
            rows=NO_TOKENS,
            chain_starts=starts,
            kinds=np.concatenate(kinds),
            values=np.concatenate(values),
            token_starts=np.zeros(starts[-1] + 1, dtype=np.int64),
            tokens=NO_TOKENS,
            amounts=NO_AMOUNTS,
            keys=np.array([request.key for request in requests], dtype=np.uint64),
            positions=NO_TOKENS,
            sample_indices=np.array([branch.index for branch in branches], dtype=np.int32),
            given=np.full(len(branches), DRAW, dtype=np.int32),
            num_logprobs=max(request.params.logprobs for request in requests),
        )


def position_at(branch: Branch, node: int) -> int:
    """The position of the token that follows a draft's node, -1: the branch's last token."""
    if node < 0 or branch.drafted is None:
        return branch.position
    return branch.position + branch.drafted.depths[node]


def memory_at(branch: Branch, node: int) -> ChainMemory | None:
    """What a branch's rules remember after a draft's node, -1: after its own last token."""
    if branch.memory is None or node < 0 or branch.drafted is None:
        return branch.memory
    drafted, path = branch.drafted, [node]
    while (parent := drafted.tree.parents[path[-1]]) >= 0:
        path.append(parent)
    memory = branch.memory.fork()
    for at in reversed(path):
        # A rule that learns from figures has those of every guess before it: see RowSampler.
        drawn = drafted.rows.get(drafted.tree.parents[at])
        memory.extend(drafted.tree.tokens[at], NOTHING_LEARNED if drawn is None else facts_of(drawn[1]))
    return memory
