"""Tiny native models, what each says of a sequence that is computed alone, and a record of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.backend.steps import int32
from tests.engine.making import SPEC, WEIGHTS, make_engine
from tests.reference.tiny import make_tensors, random_weights
from unspool.backend.base import BLOCK_SIZE, Backend, Float32Array, Int32Array, StepBatch, StepOutput
from unspool.backend.cpu import CpuBackend
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.model.tensor import TensorType
from unspool.params import SamplingParams
from unspool.results import Candidate
from unspool.sampling.offers import Offers, offers
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import Law

TENSORS = {
    0: make_tensors(WEIGHTS, TensorType.F32),
    1: make_tensors(random_weights(SPEC, seed=1), TensorType.F32),
}
"""Two models of one vocabulary."""


def native(model: int = 0, max_step_tokens: int = 256) -> CpuBackend:
    """A native backend of one of the two."""
    return CpuBackend(SPEC, TENSORS[model], threads=1, max_step_tokens=max_step_tokens)


class Recording:
    """A backend that keeps every step, sampling plan and copy that it is asked for."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = native() if backend is None else backend
        self.spec, self.max_step_tokens = self.backend.spec, self.backend.max_step_tokens
        self.cache_type = self.backend.cache_type
        self.steps: list[StepBatch] = []
        self.copied = 0

    @property
    def computed(self) -> int:
        """Tokens that went through the model."""
        return sum(len(step.tokens) for step in self.steps)

    def allocate(self, num_blocks: int) -> None:
        self.backend.allocate(num_blocks)

    def forward(self, step: StepBatch) -> StepOutput:
        self.steps.append(step)
        return self.backend.forward(step)

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        return self.backend.sample(output, plan)

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        return self.backend.laws(output, plan)

    def offers(
        self,
        output: StepOutput,
        plan: SamplePlan,
        count: int,
        *,
        perturbed: bool = False,
        log_rows: bool = False,
    ) -> Offers:
        return offers(output.logits.numpy(), plan, count, perturbed=perturbed, log_rows=log_rows)

    def copy_slots(self, pairs: Int32Array) -> None:
        self.copied += len(pairs)
        self.backend.copy_slots(pairs)


class Alone:
    """What a model says of whole sequences, each computed in a step of its own in an empty cache."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.blocks = -(-SPEC.context_length // BLOCK_SIZE)
        backend.allocate(self.blocks)

    def rows(self, token_ids: Sequence[int], exits: Sequence[int] = ()) -> Float32Array:
        """[max(1, exits), vocab_size] what follows the last token."""
        places = np.arange(len(token_ids), dtype=np.int32)
        depths = exits or [SPEC.num_layers]
        step = StepBatch(
            tokens=np.array(token_ids, np.int32),
            positions=places,
            slots=places,
            parents=places - 1,
            run_starts=int32(0, len(token_ids)),
            block_table=np.arange(self.blocks, dtype=np.int32)[None],
            context_lens=int32(0),
            rows=np.full(len(depths), len(token_ids) - 1, np.int32),
            hidden_rows=int32(),
            exits=int32(*depths),
        )
        return self.backend.forward(step).logits.numpy().copy()

    def row(self, token_ids: Sequence[int]) -> Float32Array:
        """[vocab_size] what follows the last token."""
        row: Float32Array = self.rows(token_ids)[0]
        return row


def make_native(num_blocks: int = 64, **options: Any) -> Engine:
    """An engine on a native backend."""
    return make_engine(native(), num_blocks, **options)


def words(count: int, seed: int = 0) -> list[int]:
    """Random tokens, none of them special."""
    return [int(t) for t in np.random.default_rng(seed).integers(3, SPEC.vocab_size, count)]


def ask(engine: Engine, prompt: Sequence[int], **options: Any) -> Flight:
    """Submit a request: settings, and ``source``, ``proposer``, ``strategy``, ``streaming``, ``on_event``."""
    beside = {name: options.pop(name, None) for name in ("source", "proposer", "strategy", "on_event")}
    streaming = options.pop("streaming", False)
    request = engine.prepare(
        prompt, SamplingParams(**options), source=beside["source"], proposer=beside["proposer"]
    )
    if beside["strategy"] is not None:
        request = replace(request, strategy=beside["strategy"])
    return engine.submit(request, streaming=streaming, on_event=beside["on_event"])


def finish(engine: Engine, *flights: Flight) -> None:
    """Take steps until these flights have ended and nothing is left; no block may be held then."""
    engine.drive(lambda: all(flight.done for flight in flights))
    while engine.step():
        pass
    check_empty(engine)


def check_empty(engine: Engine) -> None:
    """An engine with nothing to do holds no block and waits for nothing."""
    assert not engine.busy
    assert engine.stats().requests == 0
    for home in engine.homes.values():
        assert home.pool.num_free == home.pool.num_blocks
        assert not home.prefixes._pending


def candidates(engine: Engine, prompt: Sequence[int], **options: Any) -> list[Candidate]:
    """What one request gives."""
    flight = ask(engine, prompt, **options)
    finish(engine, flight)
    return flight.generation().candidates
