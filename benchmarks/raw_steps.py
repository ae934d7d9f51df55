"""unspool's backend without its engine: a forward pass and an argmax a step, as for the peers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.scenario import SCENARIOS, Scenario, prompts_of
from unspool.backend.base import BLOCK_SIZE, Int32Array, StepBatch
from unspool.backend.cpu import CpuBackend
from unspool.model.loader import LoadedModel
from unspool.sampling.plan import DRAW, SamplePlan
from unspool.sampling.settings import RuleSettings, compile_chain

NOTHING: Int32Array = np.empty(0, np.int32)


def blocks_of(scenario: Scenario) -> int:
    """Blocks that one of the scenario's sequences fills."""
    return -(-(scenario.prompt + scenario.steps) // BLOCK_SIZE)


class RawSteps:
    """Times scenarios on a backend of its own; each keeps its computed prompts in blocks of its own."""

    def __init__(
        self, loaded: LoadedModel, threads: int | None, scenarios: Sequence[Scenario] = SCENARIOS
    ) -> None:
        self.backend = CpuBackend(loaded.spec, loaded.tensors, threads=threads)
        self.backend.allocate(sum(s.sequences * blocks_of(s) for s in scenarios))
        self._tables: dict[str, Int32Array] = {}
        self._used = 0

    def measure(self, scenario: Scenario) -> float:
        """Seconds of the scenario's timed part."""
        table = self._table(scenario)
        if scenario.steps == 0:
            start = time.perf_counter()
            self._compute_prompt(table[:1], prompts_of(scenario)[0])
            return time.perf_counter() - start
        step = decode_step(table, scenario.prompt)
        start = time.perf_counter()
        for _ in range(scenario.steps):
            output = self.backend.forward(step)
            step.tokens[:] = output.logits.numpy().argmax(axis=1)
            advance(step)
        return time.perf_counter() - start

    def sampling_share(self, scenario: Scenario, rules: RuleSettings) -> float:
        """Time in ``sample`` with some rules, as a share of whole steps."""
        step, plan = decode_step(self._table(scenario), scenario.prompt), plan_of_rules(scenario, rules)
        sampling = whole = 0.0
        for _ in range(scenario.steps):
            start = time.perf_counter()
            output = self.backend.forward(step)
            computed = time.perf_counter()
            step.tokens[:] = self.backend.sample(output, plan).tokens
            sampled = time.perf_counter()
            sampling += sampled - computed
            whole += sampled - start
            advance(step)
            plan.positions += 1
        return sampling / whole

    def _table(self, scenario: Scenario) -> Int32Array:
        """[sequences, blocks] of the scenario, its prompts computed."""
        if scenario.name not in self._tables:
            count = scenario.sequences * blocks_of(scenario)
            table = np.arange(self._used, self._used + count, dtype=np.int32).reshape(scenario.sequences, -1)
            self._used += count
            self._tables[scenario.name] = table
            for row, prompt in zip(table, prompts_of(scenario), strict=True):
                self._compute_prompt(row[None], prompt)
        return self._tables[scenario.name]

    def _compute_prompt(self, table: Int32Array, prompt: Sequence[int]) -> None:
        """Fill one sequence's blocks, as many tokens a step as the backend takes; argmax of the last row."""
        for first in range(0, len(prompt), self.backend.max_step_tokens):
            tokens = np.array(prompt[first : first + self.backend.max_step_tokens], np.int32)
            count = len(tokens)
            positions = np.arange(first, first + count, dtype=np.int32)
            output = self.backend.forward(
                StepBatch(
                    tokens=tokens,
                    positions=positions,
                    slots=table[0][positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
                    parents=np.arange(-1, count - 1, dtype=np.int32),
                    run_starts=np.array([0, count], np.int32),
                    block_table=table,
                    context_lens=np.array([first], np.int32),
                    rows=np.array([count - 1], np.int32),
                    hidden_rows=NOTHING,
                )
            )
        output.logits.numpy()[0].argmax()


def decode_step(table: Int32Array, context: int) -> StepBatch:
    """A step of one token of each sequence, after ``context`` cached ones."""
    count = len(table)
    step = StepBatch(
        tokens=np.ones(count, np.int32),
        positions=np.full(count, context - 1, np.int32),
        slots=np.zeros(count, np.int32),
        parents=np.full(count, -1, np.int32),
        run_starts=np.arange(count + 1, dtype=np.int32),
        block_table=table,
        context_lens=np.full(count, context - 1, np.int32),
        rows=np.arange(count, dtype=np.int32),
        hidden_rows=NOTHING,
    )
    advance(step)
    return step


def advance(step: StepBatch) -> None:
    """Go on to the next position, in place (past the last block it stays where it is)."""
    step.positions += 1
    step.context_lens += 1
    position = int(step.positions[0])
    block = min(position // BLOCK_SIZE, step.block_table.shape[1] - 1)
    step.slots[:] = step.block_table[:, block] * BLOCK_SIZE + position % BLOCK_SIZE


def plan_of_rules(scenario: Scenario, rules: RuleSettings) -> SamplePlan:
    """Draw each sequence's next token by rules that remember nothing."""
    count, chain = scenario.sequences, compile_chain(rules)
    return SamplePlan(
        rows=np.arange(count, dtype=np.int32),
        chain_starts=np.arange(count + 1, dtype=np.int32) * np.int32(len(chain.kinds)),
        kinds=np.tile(chain.kinds, count),
        values=np.tile(chain.values, (count, 1)),
        token_starts=np.zeros(count * len(chain.kinds) + 1, np.int64),
        tokens=NOTHING,
        amounts=np.empty(0, np.float32),
        keys=np.arange(1, count + 1, dtype=np.uint64),
        positions=np.full(count, scenario.prompt + 1, np.int32),
        sample_indices=np.zeros(count, np.int32),
        given=np.full(count, DRAW, np.int32),
    )
