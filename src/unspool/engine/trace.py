"""What each rule of a chain did to a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unspool.backend.base import StepOutput
from unspool.engine.plans import PlannedRow, plan_of
from unspool.engine.timed_sampler import TimedSampler
from unspool.results import RuleTrace
from unspool.sampling.chain import Chain, ChainMemory
from unspool.sampling.distribution import Distribution
from unspool.sampling.rules import NoiseSource, Rule


def trace_of(
    sampler: TimedSampler,
    output: StepOutput,
    at: int,
    chain: Chain,
    memory: ChainMemory | None,
    noise: NoiseSource,
    own: StepOutput | None,
) -> tuple[RuleTrace, ...]:
    """The trace of a row that has a law: the laws after each of the chain's rules, compared.

    at: which of the output's rows. own: the row that the caller's own rules have made of it, if any are.
    """
    custom, end = chain.custom, len(chain.rules)
    middle = end if custom is None else custom
    laws = prefixes(sampler, output, at, chain, memory, noise, 0, middle)
    if custom is not None:
        assert own is not None
        laws += prefixes(sampler, own, 0, chain, memory, noise, custom + 1, end)
    size = sampler.vocab_size
    made = zip(chain.rules, laws, laws[1:], strict=False)
    return tuple(
        compare(rule, laws[0], before, after, size) for rule, before, after in made if rule in chain.named
    )


def prefixes(
    sampler: TimedSampler,
    output: StepOutput,
    at: int,
    chain: Chain,
    memory: ChainMemory | None,
    noise: NoiseSource,
    first: int,
    end: int,
) -> list[Distribution]:
    """The laws before rule ``first``, after it, and so on, up to that after rule ``end - 1``."""
    rows = [PlannedRow(at, chain, first, upto, memory, noise) for upto in range(first, end + 1)]
    return [Distribution.of(ids, logits) for _, ids, logits in sampler.laws(output, plan_of(rows))]


def compare(
    rule: Rule, model: Distribution, before: Distribution, after: Distribution, size: int
) -> RuleTrace:
    """What a rule did that found one law and left another. model: the law before all rules."""
    kept = np.isin(before.ids, after.ids)
    probabilities = before.probabilities[kept]
    change = spread(after, size) - spread(before, size)
    return RuleTrace(
        rule=rule.name,
        candidates_before=len(before.ids),
        candidates=len(after.ids),
        mass=mass_of(before, kept),
        model_mass=mass_of(model, np.isin(model.ids, after.ids)),
        threshold=float(probabilities.min()) if len(probabilities) else 0.0,
        shift=float(np.abs(change).sum()) / 2,
        entropy_before=before.entropy,
        entropy=after.entropy,
    )


def mass_of(law: Distribution, chosen: npt.NDArray[np.bool_]) -> float:
    """The probability of some candidates together, at most 1."""
    return int(law.weights[chosen].sum()) / law.total


def spread(law: Distribution, size: int) -> npt.NDArray[np.float64]:
    """[size] the probability of every token."""
    probabilities = np.zeros(size)
    probabilities[law.ids] = law.probabilities
    return probabilities
