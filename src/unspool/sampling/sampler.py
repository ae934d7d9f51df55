"""The reference sampler: every planned row's chain and draw, as they are defined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unspool.sampling import noise
from unspool.sampling.distribution import Distribution
from unspool.sampling.plan import RowResults, RowStatus, SamplePlan
from unspool.sampling.rules import LogitsRow, Rule, RuleState, rule_of

Float32Array = npt.NDArray[np.float32]


class NoLawError(ValueError):
    """A row has no law to draw from."""

    def __init__(self, status: RowStatus) -> None:
        super().__init__(status.name)
        self.status = status


def sample(logits: Float32Array, plan: SamplePlan) -> RowResults:
    """Run each planned row's chain and draw from what it keeps.

    ``logits`` is [R, vocabulary] float32. What is drawn depends on the row, its chain and history, and
    on (key, position, sample index): on nothing else of the plan.
    """
    results = RowResults.empty(len(plan.rows), plan.num_logprobs)
    for n in range(len(plan.rows)):
        entries = slice(plan.chain_starts[n], plan.chain_starts[n + 1])
        rules = [
            rule_of(*entry) for entry in zip(plan.kinds[entries], plan.values[entries].tolist(), strict=True)
        ]
        state = RuleState(plan.history[plan.history_starts[n] : plan.history_starts[n + 1]])
        try:
            raw = law_of(logits[plan.rows[n]])
            law = law_of(logits[plan.rows[n]], rules, state)
        except NoLawError as error:
            results.status[n] = error.status
            continue
        place = draw(law, int(plan.keys[n]), int(plan.positions[n]), int(plan.sample_indices[n]))
        _report(results, n, raw, law, place)
    return results


def law_of(
    logits: Float32Array,
    rules: Sequence[Rule] = (),
    state: RuleState = RuleState(np.empty(0, np.int32)),  # noqa: B008  # immutable
) -> Distribution:
    """What a chain makes of a [vocabulary] row of logits.

    -inf is a token that is banned. Raises ``NoLawError`` with status NOT_A_NUMBER where the row holds
    NaN or +inf, or where a rule's arithmetic takes the largest logit beyond float32; with EMPTY where
    every token is banned.
    """
    if not np.all(logits < np.inf):
        raise NoLawError(RowStatus.NOT_A_NUMBER)
    row = LogitsRow.of(logits)
    if len(row.ids) == 0:
        raise NoLawError(RowStatus.EMPTY)
    with np.errstate(over="ignore"):
        for rule in rules:
            rule.apply(row, state)
            if not np.isfinite(row.logits.max()):
                raise NoLawError(RowStatus.NOT_A_NUMBER)
    return Distribution.of(row.ids, row.logits)


def draw(law: Distribution, key: int, position: int, sample_index: int) -> int:
    """The place among ``law.ids`` of the drawn token: argmin E / w, the lowest id of tied ones.

    The least of exponential variables with rates w is at i with probability w_i / W (the exponential
    race, or the Gumbel trick taken through exp): one number a candidate, whoever its neighbours are.
    """
    drawable = np.flatnonzero(law.weights)
    variables = noise.exponentials(key, law.ids[drawable], position, sample_index)
    return int(drawable[np.argmin(variables / law.weights[drawable])])


def _report(results: RowResults, n: int, raw: Distribution, law: Distribution, place: int) -> None:
    """Fill row n of the results with what was drawn and how probable it was."""
    token = law.ids[place]
    order = LogitsRow(raw.ids, raw.logits).descending()
    log_probabilities = raw.log_probabilities
    drawn = np.searchsorted(raw.ids, token)
    results.tokens[n] = token
    results.logprobs[n] = log_probabilities[drawn]
    results.processed_logprobs[n] = law.log_probabilities[place]
    results.ranks[n] = np.flatnonzero(order == drawn)[0]
    results.entropies[n] = raw.entropy
    results.kept[n] = np.count_nonzero(law.logits > -np.inf)
    best = order[: results.top_tokens.shape[1]]
    results.top_tokens[n, : len(best)] = raw.ids[best]
    results.top_logprobs[n] = -np.inf
    results.top_logprobs[n, : len(best)] = log_probabilities[best]
