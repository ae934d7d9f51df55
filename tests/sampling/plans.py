"""Plans of rows whose chains remember a prompt and an output, and what the reference makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unspool.sampling.chain import Chain, ChainMemory, padded
from unspool.sampling.distribution import Distribution
from unspool.sampling.plan import DRAW, RowStatus, SamplePlan
from unspool.sampling.rules import Facts, Memory, Rule
from unspool.sampling.sampler import laws

Float32Array = npt.NDArray[np.float32]
Entry = tuple[int, tuple[float, ...], list[int], list[float]]

NO_RULES = Chain()

UNMOVED = Facts(0.0, 0.0)
"""What a memory is told of tokens where nothing learns from their surprise."""


def chain(*rules: Rule) -> Chain:
    return Chain(rules)


def memory_of(chain: Chain, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> ChainMemory | None:
    memory = chain.memory(prompt)
    for token in output:
        if memory is not None:
            memory.extend(token, UNMOVED)
    return memory


@dataclass(frozen=True)
class Asked:
    """One row of a plan."""

    chain: Chain = NO_RULES
    memory: ChainMemory | None = None
    key: int = 0
    position: int = 0
    sample_index: int = 0
    row: int = 0
    given: int = DRAW

    def entries(self) -> list[Entry]:
        memories = self.memory.memories if self.memory else [None] * len(self.chain.rules)
        return [entry_of(rule, memory) for rule, memory in zip(self.chain.rules, memories, strict=True)]


def entry_of(rule: Rule, memory: Memory | None) -> Entry:
    if memory is None:
        return rule.kind, padded(rule.values), [], []
    tokens = memory.tokens.tolist()
    amounts = memory.amounts.tolist() or [0.0] * len(tokens)
    return rule.kind, padded(rule.values if memory.values is None else memory.values), tokens, amounts


def plan_of(asked: Iterable[Asked], num_logprobs: int = 0) -> SamplePlan:
    rows = list(asked)
    by_row = [row.entries() for row in rows]
    entries = [entry for of_row in by_row for entry in of_row]
    return SamplePlan(
        rows=np.array([row.row for row in rows], np.int32),
        chain_starts=np.cumsum([0, *map(len, by_row)]).astype(np.int32),
        kinds=np.array([kind for kind, _, _, _ in entries], np.int32),
        values=np.array([values for _, values, _, _ in entries], np.float64).reshape(-1, 3),
        token_starts=np.cumsum([0, *(len(tokens) for _, _, tokens, _ in entries)]).astype(np.int64),
        tokens=np.array([t for _, _, tokens, _ in entries for t in tokens], np.int32),
        amounts=np.array([a for _, _, _, amounts in entries for a in amounts], np.float32),
        keys=np.array([row.key for row in rows], np.uint64),
        positions=np.array([row.position for row in rows], np.int32),
        sample_indices=np.array([row.sample_index for row in rows], np.int32),
        given=np.array([row.given for row in rows], np.int32),
        num_logprobs=num_logprobs,
    )


def after(
    logits: Sequence[float] | Float32Array,
    *rules: Rule,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    key: int = 0,
) -> Distribution:
    """What a chain of rules makes of a row, after a prompt and an output."""
    of = Chain(rules)
    plan = plan_of([Asked(of, memory_of(of, prompt, output), key)])
    ((status, ids, left),) = laws(np.array(logits, np.float32)[None], plan)
    assert status == RowStatus.OK
    assert len(ids) >= 1
    assert np.isfinite(left).all()
    return Distribution.of(ids, left)


def kept(logits: Sequence[float] | Float32Array, *rules: Rule, key: int = 0) -> list[int]:
    ids: list[int] = after(logits, *rules, key=key).ids.tolist()
    return ids


def draws_of(
    asked: Asked, positions: npt.NDArray[np.integer], sample_indices: npt.NDArray[np.integer]
) -> SamplePlan:
    """Many draws of one row, at [n] positions and of [n] samples."""
    n, one = len(positions), plan_of([asked])
    entries, tokens = len(one.kinds), len(one.tokens)
    return SamplePlan(
        rows=np.full(n, asked.row, np.int32),
        chain_starts=(np.arange(n + 1) * entries).astype(np.int32),
        kinds=np.tile(one.kinds, n),
        values=np.tile(one.values, (n, 1)),
        token_starts=np.append(
            (one.token_starts[:-1] + tokens * np.arange(n)[:, None]).ravel(), n * tokens
        ).astype(np.int64),
        tokens=np.tile(one.tokens, n),
        amounts=np.tile(one.amounts, n),
        keys=np.full(n, asked.key, np.uint64),
        positions=positions.astype(np.int32),
        sample_indices=sample_indices.astype(np.int32),
        given=np.full(n, asked.given, np.int32),
    )
