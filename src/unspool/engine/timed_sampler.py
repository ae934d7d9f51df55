"""A backend's sampler, and how long it took."""

from __future__ import annotations

from time import perf_counter

from unspool.backend.base import Backend, StepOutput
from unspool.sampling.offers import Offers
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import Law


class TimedSampler:
    """Draws and laws on one backend; ``seconds`` counts both."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.vocab_size = backend.spec.vocab_size
        self.seconds = 0.0

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        """As ``Backend.sample``."""
        began = perf_counter()
        results = self._backend.sample(output, plan)
        self.seconds += perf_counter() - began
        return results

    def offers(
        self, output: StepOutput, plan: SamplePlan, count: int, *, perturbed: bool, log_rows: bool
    ) -> Offers:
        """As ``Backend.offers``."""
        began = perf_counter()
        made = self._backend.offers(output, plan, count, perturbed=perturbed, log_rows=log_rows)
        self.seconds += perf_counter() - began
        return made

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        """As ``Backend.laws``."""
        began = perf_counter()
        made = self._backend.laws(output, plan)
        self.seconds += perf_counter() - began
        return made
