"""The best candidates of each planned row, as they are defined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unspool.sampling import noise
from unspool.sampling.distribution import Distribution, below_max
from unspool.sampling.plan import SamplePlan
from unspool.sampling.rules import LogitsRow, NoiseSource
from unspool.sampling.sampler import (
    NoLawError,
    checked,
    log_probabilities,
    log_probability,
    noise_of,
    processed_row,
    rank,
    valid,
)

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@dataclass
class Offers:
    """The best candidates of N rows, at most M of each."""

    status: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    scores: Float64Array
    logprobs: Float64Array
    processed_logprobs: Float64Array
    surprises: Float64Array
    ranks: npt.NDArray[np.int32]
    perturbed: Float64Array
    entropies: Float64Array
    kept: npt.NDArray[np.int32]
    top_tokens: npt.NDArray[np.int32]
    top_logprobs: Float64Array


def offers(
    logits: Float32Array, plan: SamplePlan, count: int, *, perturbed: bool = False, log_rows: bool = False
) -> Offers:
    """The reference."""
    n, top = len(plan.rows), plan.num_logprobs
    ints = lambda *shape: np.zeros(shape, np.int32)  # noqa: E731
    floats = lambda *shape: np.zeros(shape)  # noqa: E731
    made = Offers(
        ints(n),
        ints(n),
        ints(n, count),
        floats(n, count),
        floats(n, count),
        floats(n, count),
        floats(n, count),
        ints(n, count),
        floats(n, count),
        floats(n),
        ints(n),
        ints(2, n, top) - 1,
        floats(2, 2, n, top) - np.inf,
    )
    for i in range(n):
        row = logits[plan.rows[i]]
        try:
            raw = Distribution.of(*checked(LogitsRow.of(valid(row))))
            one = log_softmax(row) if log_rows else row
            full = np.repeat(one[None], max(plan.rows) + 1, axis=0)
            processed = processed_row(full[plan.rows[i]], plan, i)
        except NoLawError as error:
            made.status[i] = error.status
            continue
        law = Distribution.of(processed.ids, processed.logits)
        scores = law.logits.astype(np.float64) if log_rows else law.log_probabilities
        if perturbed:
            order, values = perturbed_order(law, noise_of(plan, i))
        else:
            order, values = np.lexsort((law.ids, -law.logits)), np.zeros(len(law.ids))
        order = order[:count]
        k = len(order)
        made.counts[i] = k
        made.tokens[i, :k] = law.ids[order]
        made.scores[i, :k] = scores[order]
        made.processed_logprobs[i, :k] = law.log_probabilities[order]
        if perturbed:
            made.perturbed[i, :k] = values[order] + (scores - law.log_probabilities)[order]
        made.logprobs[i, :k] = log_probabilities(raw, law.ids[order])
        made.ranks[i, :k] = [rank(raw, int(t)) for t in law.ids[order]]
        if processed.witnessed:
            seen = Distribution.of(*processed.witnessed[-1])
            made.surprises[i, :k] = [-log_probability(seen, int(t)) for t in law.ids[order]]
        made.entropies[i] = raw.entropy
        made.kept[i] = np.count_nonzero(law.logits > -np.inf)
        for which, of in enumerate((raw, law)):
            best = of.ids[LogitsRow(of.ids, of.logits).descending()[:top]]
            made.top_tokens[which, i, : len(best)] = best
            for column, under in enumerate((raw, law)):
                made.top_logprobs[which, column, i, : len(best)] = log_probabilities(under, best)
    return made


def log_softmax(row: Float32Array) -> Float32Array:
    """[vocab_size] log-probabilities in float32."""
    law = Distribution.of(*checked(LogitsRow.of(valid(row))))
    out = np.full(len(row), -np.inf, np.float32)
    out[law.ids] = below_max(law.logits) - np.float32(law.log_total)
    return out


def perturbed_order(law: Distribution, source: NoiseSource) -> tuple[npt.NDArray[np.int64], Float64Array]:
    """Places of the law's candidates in the order of their drawing, and [n] their perturbed log-probabilities."""
    drawable = np.flatnonzero(law.weights)
    variables = noise.exponentials(source.key, law.ids[drawable], source.position, source.sample_index)
    values = np.full(len(law.ids), -np.inf)
    values[drawable] = law.log_probabilities[drawable] - np.log(variables)
    return drawable[np.lexsort((law.ids[drawable], variables / law.weights[drawable]))], values
