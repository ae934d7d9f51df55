"""A backend that says what it is told to: its rows make the token of a script the only likely one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.llama import ReferenceLogits
from unspool.backend.base import Int32Array, StepBatch, StepOutput
from unspool.cache.size import CacheType
from unspool.model.spec import ModelSpec
from unspool.sampling.offers import Offers, offers
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import Law, laws, sample


class ScriptedBackend:
    """After position p follows token ``script[p + 1]``, whatever came before; after ``nan_at`` a NaN row."""

    def __init__(self, spec: ModelSpec, script: Sequence[int], nan_at: int | None = None) -> None:
        self.spec = spec
        self.script = list(script)
        self.nan_at = nan_at
        self.cache_type: CacheType = "float32"
        self.max_step_tokens = 256
        self.forwards = 0

    def allocate(self, num_blocks: int) -> None:
        """Nothing is cached."""

    def forward(self, step: StepBatch) -> StepOutput:
        self.forwards += 1
        logits = np.zeros((len(step.rows), self.spec.vocab_size), dtype=np.float32)
        for r, t in enumerate(step.rows):
            position = int(step.positions[t])
            logits[r, self.script[position + 1]] = 50.0
            if position == self.nan_at:
                logits[r, 0] = np.nan
        return StepOutput(ReferenceLogits(logits), np.empty((0, self.spec.hidden_size), np.float32))

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        return sample(output.logits.numpy(), plan)

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        return laws(output.logits.numpy(), plan)

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
        """Nothing is cached."""
