"""The best candidates of each planned row, or the first that its noise draws: the definition."""

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
    noise_of,
    processed_row,
    rank,
    valid,
)

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]


@dataclass
class Offers:
    """At most M candidates of each of N rows. Where ``status`` is not OK there is none."""

    integers: Int32Array
    """[4, N] unused, ``status``, ``kept``, ``counts``: a few arrays are read faster than many."""
    entropies: Float32Array
    """[N] of the raw row, in nats."""
    offered: Int32Array
    """[2, N, M] ``tokens``, ``ranks``."""
    figures: Float64Array
    """[5, N, M] ``scores``, ``logprobs``, ``processed_logprobs``, ``surprises``, ``variables``."""
    top_tokens: Int32Array
    """[2, N, num_logprobs] as in ``RowResults``."""
    top_logprobs: Float32Array
    """[2, 2, N, num_logprobs] as in ``RowResults``."""

    @property
    def status(self) -> Int32Array:
        """[N] ``RowStatus``."""
        return self.integers[1, :]

    @property
    def kept(self) -> Int32Array:
        """[N] how many candidates the chain kept."""
        return self.integers[2, :]

    @property
    def counts(self) -> Int32Array:
        """[N] how many of the M are there: fewer where fewer are kept (or, of a race, have a mass)."""
        return self.integers[3, :]

    @property
    def tokens(self) -> Int32Array:
        """[N, M] best first; those that tie by id."""
        return self.offered[0, :]

    @property
    def ranks(self) -> Int32Array:
        """[N, M] in the raw row, from 0."""
        return self.offered[1, :]

    @property
    def scores(self) -> Float64Array:
        """[N, M] log-probabilities under the law; of rows of log-probabilities, what is left of them."""
        return self.figures[0, :]

    @property
    def logprobs(self) -> Float64Array:
        """[N, M] log-probabilities under the raw row."""
        return self.figures[1, :]

    @property
    def processed_logprobs(self) -> Float64Array:
        """[N, M] log-probabilities under the law."""
        return self.figures[2, :]

    @property
    def surprises(self) -> Float64Array:
        """[N, M] -log p under the law that reached the chain's last WITNESS; 0 without one."""
        return self.figures[3, :]

    @property
    def variables(self) -> Float64Array:
        """[N, M] the noise of each, exponential; 0 where none was wanted."""
        return self.figures[4, :]

    @property
    def perturbed(self) -> Float64Array:
        """[N, M] scores and Gumbel noise; scores where no noise was wanted."""
        return perturb(self.scores, self.variables)


def offers(
    logits: Float32Array, plan: SamplePlan, count: int, *, perturbed: bool = False, log_rows: bool = False
) -> Offers:
    """The ``count`` best candidates of each planned row.

    logits: [R, vocabulary] float32.
    perturbed: the first ``count`` to arrive in the exponential race instead, whose winner ``sample`` draws: a
        sample without replacement, in the order of the perturbed log-probabilities (Kool et al. 2019).
    log_rows: whether chains see ``log_softmax`` of the rows, and scores are what they leave.
    """
    size, most = len(plan.rows), min(count, logits.shape[1])
    made = Offers(
        integers=np.zeros((4, size), np.int32),
        entropies=np.zeros(size, np.float32),
        offered=np.zeros((2, size, most), np.int32),
        figures=np.zeros((5, size, most)),
        top_tokens=np.full((2, size, plan.num_logprobs), -1, np.int32),
        top_logprobs=np.zeros((2, 2, size, plan.num_logprobs), np.float32),
    )

    for n in range(size):
        try:
            offer(made, n, logits[plan.rows[n]], plan, perturbed, log_rows)
        except NoLawError as error:
            made.status[n] = error.status

    return made


def offer(
    made: Offers, n: int, logits: Float32Array, plan: SamplePlan, perturbed: bool, log_rows: bool
) -> None:
    """Fill row n of the offers. Raises ``NoLawError``."""
    raw = Distribution.of(*checked(LogitsRow.of(valid(logits))))
    processed = processed_row(log_softmax(logits) if log_rows else logits, plan, n)
    law = Distribution.of(processed.ids, processed.logits)
    if perturbed:
        order, variables = race(law, noise_of(plan, n))
    else:
        order = LogitsRow(law.ids, law.logits).descending()
        order = order[law.logits[order] > -np.inf]
        variables = np.zeros(len(law.ids))
    order = order[: made.offered.shape[2]]
    count, tokens = len(order), law.ids[order]
    made.counts[n], made.kept[n] = count, np.count_nonzero(law.logits > -np.inf)
    made.entropies[n] = raw.entropy
    made.tokens[n, :count] = tokens
    made.ranks[n, :count] = [rank(raw, int(token)) for token in tokens]
    made.logprobs[n, :count] = log_probabilities(raw, tokens)
    made.processed_logprobs[n, :count] = law.log_probabilities[order]
    made.scores[n, :count] = law.logits[order] if log_rows else law.log_probabilities[order]
    made.variables[n, :count] = variables[order]
    if processed.witnessed:
        made.surprises[n, :count] = -log_probabilities(Distribution.of(*processed.witnessed[-1]), tokens)
    made.top_logprobs[:, :, n] = -np.inf
    for which, of in enumerate((raw, law)):
        best = of.ids[LogitsRow(of.ids, of.logits).descending()[: plan.num_logprobs]]
        made.top_tokens[which, n, : len(best)] = best
        for column, under in enumerate((raw, law)):
            made.top_logprobs[which, column, n, : len(best)] = log_probabilities(under, best)


def race(law: Distribution, source: NoiseSource) -> tuple[npt.NDArray[np.int64], Float64Array]:
    """Places of the candidates that have a mass, in the order of E / w, ties by id; and [n] each one's E."""
    drawable = np.flatnonzero(law.weights)
    variables = np.zeros(len(law.ids))
    variables[drawable] = noise.exponentials(
        source.key, law.ids[drawable], source.position, source.sample_index
    )
    ratios = variables[drawable] / law.weights[drawable]
    return drawable[np.argsort(ratios, kind="stable")], variables


def perturb(scores: Float64Array, variables: Float64Array) -> Float64Array:
    """Scores less log E: -log of an exponential variable is a Gumbel one. Scores as they are where E is 0."""
    there = variables > 0
    noisy: Float64Array = scores - np.where(there, noise.natural_log(np.where(there, variables, 1.0)), 0.0)
    return noisy


def log_softmax(row: Float32Array) -> Float32Array:
    """[vocabulary] z - max z, less log(W / 2**40) as a float32; -inf where banned. Raises ``NoLawError``."""
    law = Distribution.of(*checked(LogitsRow.of(valid(row))))
    logarithms = np.full(len(row), -np.inf, np.float32)
    logarithms[law.ids] = below_max(law.logits) - np.float32(law.log_total)
    return logarithms
