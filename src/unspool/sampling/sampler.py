"""The reference sampler: every planned row's chain and draw, as they are defined."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unspool.sampling import noise
from unspool.sampling.distribution import Distribution
from unspool.sampling.plan import DRAW, RowResults, RowStatus, SamplePlan
from unspool.sampling.rules import Inputs, LogitsRow, NoiseSource, apply_entry

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Law = tuple[RowStatus, Int32Array, Float32Array]
"""Whether there is a law, and its candidates: ascending ids and their logits ([0] where there is none)."""

NO_LAW = (np.empty(0, np.int32), np.empty(0, np.float32))


class NoLawError(ValueError):
    """A row has no law to draw from."""

    def __init__(self, status: RowStatus) -> None:
        super().__init__(status.name)
        self.status = status


def sample(logits: Float32Array, plan: SamplePlan) -> RowResults:
    """Run each planned row's chain and draw from what it keeps.

    ``logits`` is [R, vocabulary] float32. What is drawn depends on the row, its chain and their tokens, and
    on (key, position, sample index): on nothing else of the plan.
    """
    results = RowResults.empty(len(plan.rows), plan.num_logprobs)
    for n in range(len(plan.rows)):
        row = logits[plan.rows[n]]
        try:
            raw = Distribution.of(*checked(LogitsRow.of(valid(row))))
            processed = processed_row(row, plan, n)
        except NoLawError as error:
            results.status[n] = error.status
            continue
        law = Distribution.of(processed.ids, processed.logits)
        drawn = plan.given[n] == DRAW
        token = int(law.ids[draw(law, noise_of(plan, n))] if drawn else plan.given[n])
        report(results, n, raw, law, token)
        if processed.witnessed:
            seen = Distribution.of(*processed.witnessed[-1])
            results.surprises[n] = -log_probability(seen, token)
    return results


def laws(logits: Float32Array, plan: SamplePlan) -> list[Law]:
    """What each planned row's chain makes of it, without a draw."""
    made: list[Law] = []
    for n in range(len(plan.rows)):
        try:
            row = processed_row(logits[plan.rows[n]], plan, n)
        except NoLawError as error:
            made.append((error.status, *NO_LAW))
        else:
            made.append((RowStatus.OK, row.ids, row.logits))
    return made


def processed_row(logits: Float32Array, plan: SamplePlan, n: int) -> LogitsRow:
    """What planned row n's chain makes of a [vocabulary] row of logits; -inf is a token that is banned.

    Raises ``NoLawError`` with status NOT_A_NUMBER where the row holds NaN or +inf, or where a rule's
    arithmetic takes the largest logit beyond float32; with EMPTY where every token is banned.
    """
    row = LogitsRow.of(valid(logits))
    checked(row)
    source = noise_of(plan, n)
    with np.errstate(over="ignore"):
        for entry in range(plan.chain_starts[n], plan.chain_starts[n + 1]):
            tokens = slice(plan.token_starts[entry], plan.token_starts[entry + 1])
            inputs = Inputs(plan.tokens[tokens], plan.amounts[tokens], source)
            apply_entry(int(plan.kinds[entry]), plan.values[entry].tolist(), row, inputs)
            checked(row)
    return row


def valid(logits: Float32Array) -> Float32Array:
    """The row, if no logit is NaN or +inf."""
    if not np.all(logits < np.inf):
        raise NoLawError(RowStatus.NOT_A_NUMBER)
    return logits


def checked(row: LogitsRow) -> tuple[Int32Array, Float32Array]:
    """The candidates, if there is one and the largest logit is finite."""
    if len(row.ids) == 0:
        raise NoLawError(RowStatus.EMPTY)
    if not np.isfinite(row.logits.max()):
        raise NoLawError(RowStatus.NOT_A_NUMBER)
    return row.ids, row.logits


def noise_of(plan: SamplePlan, n: int) -> NoiseSource:
    """Where planned row n's noise comes from."""
    return NoiseSource(int(plan.keys[n]), int(plan.positions[n]), int(plan.sample_indices[n]))


def draw(law: Distribution, source: NoiseSource) -> int:
    """The place among ``law.ids`` of the drawn token: argmin E / w, the lowest id of tied ones.

    The least of exponential variables with rates w is at i with probability w_i / W (the exponential
    race, or the Gumbel trick taken through exp): one number a candidate, whoever its neighbours are.
    """
    drawable = np.flatnonzero(law.weights)
    variables = noise.exponentials(source.key, law.ids[drawable], source.position, source.sample_index)
    return int(drawable[np.argmin(variables / law.weights[drawable])])


def log_probability(law: Distribution, token: int) -> float:
    """log p of a token under a law; -inf where it is no candidate."""
    return float(log_probabilities(law, np.array([token]))[0])


def log_probabilities(law: Distribution, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """[n] log p of tokens under a law; -inf where one is no candidate."""
    places = np.minimum(np.searchsorted(law.ids, tokens), len(law.ids) - 1)
    found: npt.NDArray[np.float64] = np.where(
        law.ids[places] == tokens, law.log_probabilities[places], -np.inf
    )
    return found


def report(results: RowResults, n: int, raw: Distribution, law: Distribution, token: int) -> None:
    """Fill row n of the results with a token and how probable it is."""
    results.tokens[n] = token
    results.logprobs[n] = log_probability(raw, token)
    results.processed_logprobs[n] = log_probability(law, token)
    results.ranks[n] = rank(raw, token)
    results.entropies[n] = raw.entropy
    results.kept[n] = np.count_nonzero(law.logits > -np.inf)
    results.top_logprobs[:, :, n] = -np.inf
    for which, of in enumerate((raw, law)):
        best = of.ids[LogitsRow(of.ids, of.logits).descending()[: results.top_tokens.shape[2]]]
        results.top_tokens[which, n, : len(best)] = best
        for column, under in enumerate((raw, law)):
            results.top_logprobs[which, column, n, : len(best)] = log_probabilities(under, best)


def rank(raw: Distribution, token: int) -> int:
    """How many candidates come before a token; all of them where it is banned."""
    place = int(np.searchsorted(raw.ids, token))
    if place == len(raw.ids) or raw.ids[place] != token:
        return len(raw.ids)
    order = LogitsRow(raw.ids, raw.logits).descending()
    return int(np.flatnonzero(order == place)[0])
