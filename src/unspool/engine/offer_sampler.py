"""From rows of logits to the candidates that a search chooses from."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby

import numpy as np
import numpy.typing as npt

from unspool.backend.base import StepOutput
from unspool.engine.branch import Branch
from unspool.engine.flight import Flight
from unspool.engine.plans import PlannedRow, plan_of
from unspool.engine.row_sampler import NO_CHAIN, Drawn, Fault, RowSampler, Wanted, output_of, row_error
from unspool.engine.trace import trace_of
from unspool.sampling.distribution import Distribution
from unspool.sampling.noise import mix
from unspool.sampling.offers import Offers, log_softmax, perturb, race
from unspool.sampling.plan import RowStatus
from unspool.sampling.rules import NoiseSource
from unspool.sampling.sampler import NoLawError
from unspool.strategy import Figures, Law, Offer, RowWant

Taken = tuple[tuple[Offer, ...], Law | None]


class OfferSampler:
    """Takes offers, and whole laws, from rows on one backend: one call for most.

    rows: what makes a caller's own rules of a row, and runs them.
    """

    def __init__(self, rows: RowSampler) -> None:
        self._rows = rows

    def take(self, wanted: Sequence[Wanted], output: StepOutput) -> tuple[list[Drawn], list[Fault]]:
        """The offers of each wanted row, as its request's strategy wants them."""
        drawn: list[Drawn] = []
        faults: list[Fault] = []
        plain = [row for row in wanted if row.branch.request.chain.custom is None]
        for want, group in groupby(sorted(plain, key=want_of), key=want_of):
            self._take_together(want, list(group), output, drawn, faults)
        for row in wanted:
            if row.branch.request.chain.custom is not None:
                self._take_alone(row, output, drawn, faults)
        return drawn, faults

    def _take_together(
        self,
        want: RowWant,
        wanted: list[Wanted],
        output: StepOutput,
        drawn: list[Drawn],
        faults: list[Fault],
    ) -> None:
        planned = [whole_chain(row) for row in wanted]
        most = max(row.branch.request.params.logprobs for row in wanted)
        count = max(1, want.offers)
        offers = self._rows.timed.offers(
            output, plan_of(planned, most), count, perturbed=want.perturbed, log_rows=not want.normalized
        )
        for at, row in enumerate(wanted):
            branch = row.branch
            if offers.status[at]:
                faults.append(Fault(branch, -1, row_error(branch, RowStatus(int(offers.status[at])))))
                continue
            made = offers_of(offers, at, branch.request.params.logprobs, want.perturbed)
            law = None
            if want.law or branch.request.params.trace:
                looked = self._look(row, planned[at], output, made)
                if looked is None:
                    continue
                made, law = looked
            drawn.append(Drawn(branch, -1, made[0].token, made[0].figures, made, law))

    def _look(
        self, row: Wanted, planned: PlannedRow, output: StepOutput, offers: tuple[Offer, ...]
    ) -> Taken | None:
        """The offers with the trace of their row, and its law, where these are wanted."""
        request = row.branch.request
        source, at = self._scored(row, output)
        law = None
        if request.strategy.want.law:
            processed = self._rows.law(source, at, request.chain, planned.memory, planned.noise, None)
            law = self._whole(row, output, processed)
        if request.params.trace:
            trace = trace_of(self._rows.timed, source, at, request.chain, planned.memory, planned.noise, None)
            offers = tuple(o._replace(figures=o.figures._replace(trace=trace)) for o in offers)
        return offers, law

    def _whole(self, row: Wanted, output: StepOutput, processed: Distribution) -> Law:
        """A law, given what the rules made of it."""
        noise = NoiseSource(0, 0, 0)
        model = self._rows.law(output, row.row, NO_CHAIN, None, noise, None)
        return Law(processed, scores_of(processed, want_of(row)), model)

    def _scored(self, row: Wanted, output: StepOutput) -> tuple[StepOutput, int]:
        """The row that the rules see: the model's logits, or their log-probabilities."""
        if row.branch.request.strategy.want.normalized:
            return output, row.row
        return output_of(log_softmax(output.logits.numpy()[row.row])[None]), 0

    def _take_alone(self, row: Wanted, output: StepOutput, drawn: list[Drawn], faults: list[Fault]) -> None:
        """Offers of a row that goes through a caller's own rules: by their definition, one by one."""
        branch = row.branch

        def take() -> Taken:
            return self._around(row, output)

        def failed(_: Flight, error: BaseException) -> None:
            of_row = row_error(branch, error.status) if isinstance(error, NoLawError) else error
            faults.append(Fault(branch, -1, of_row))

        taken = self._rows.host.run(branch.flight, take, failed)
        if taken is not None:
            offers, law = taken
            drawn.append(Drawn(branch, -1, offers[0].token, offers[0].figures, offers, law))

    def _around(self, row: Wanted, output: StepOutput) -> Taken:
        request, planned = row.branch.request, whole_chain(row)
        want, chain, memory, noise = request.strategy.want, request.chain, planned.memory, planned.noise
        source, at = self._scored(row, output)
        own = self._rows.own_rows(source, at, chain, memory, noise)
        law = self._rows.law(source, at, chain, memory, noise, own)
        scores = scores_of(law, want)
        if want.perturbed:
            order, variables = race(law, noise)
            perturbed = perturb(scores, variables)
        else:
            order, perturbed = np.lexsort((law.ids, -law.logits)), scores
        made: list[Offer] = []
        for place in order[: max(1, want.offers)].tolist():
            token, figures = self._rows.figure(
                source, at, chain, memory, noise, own, given=int(law.ids[place]),
                num_logprobs=request.params.logprobs, traced=request.params.trace and not made,
            )  # fmt: skip
            figures = figures._replace(trace=made[0].figures.trace) if made else figures
            made.append(Offer(token, float(scores[place]), figures, float(perturbed[place])))
        return tuple(made), self._whole(row, output, law) if want.law else None


def scores_of(law: Distribution, want: RowWant) -> npt.NDArray[np.float64]:
    """[n] the score of each candidate of what the rules made of a row: see ``Offer.score``."""
    return law.log_probabilities if want.normalized else law.logits.astype(np.float64)


def want_of(row: Wanted) -> RowWant:
    """What the row's strategy wants of it."""
    return row.branch.request.strategy.want


def whole_chain(row: Wanted) -> PlannedRow:
    """A row's way through all rules, with noise that is its branch's own."""
    branch = row.branch
    chain = branch.request.chain
    return PlannedRow(row.row, chain, 0, len(chain.rules), branch.memory, noise_of(branch))


def noise_of(branch: Branch) -> NoiseSource:
    """A function of the seed and the branch's tokens, so that no two branches share their noise."""
    key = branch.request.key
    if branch.request.strategy.want.perturbed and branch.token_ids:
        key = mix(branch.request.seed, lane_of(branch.token_ids))
    return NoiseSource(key, branch.position, 0)


def lane_of(token_ids: Sequence[int]) -> int:
    """64 bits of a hash of tokens; 0 of none."""
    data = np.array(token_ids, dtype="<i4").tobytes()
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def offers_of(offers: Offers, at: int, num_logprobs: int, perturbed: bool) -> tuple[Offer, ...]:
    """The offers of one row with their figures."""
    count = int(offers.counts[at])
    entropy, kept = float(offers.entropies[at]), int(offers.kept[at])
    scores = offers.scores[at, :count]
    noisy = perturb(scores, offers.variables[at, :count]) if perturbed else scores
    best, processed = (ranked(offers, which, at, num_logprobs) for which in (0, 1))
    columns = (
        offers.tokens[at, :count].tolist(),
        scores.tolist(),
        offers.logprobs[at, :count].tolist(),
        offers.processed_logprobs[at, :count].tolist(),
        offers.surprises[at, :count].tolist(),
        offers.ranks[at, :count].tolist(),
        noisy.tolist(),
    )
    return tuple(
        Offer(
            token,
            score,
            Figures(logprob, processed_logprob, entropy, surprise, rank, kept, best, processed),
            with_noise,
        )
        for token, score, logprob, processed_logprob, surprise, rank, with_noise in zip(*columns, strict=True)
    )


def ranked(offers: Offers, which: int, at: int, most: int) -> tuple[tuple[int, float, float], ...]:
    """The most probable tokens of a row's model law (0) or of the law that the rules made (1)."""
    if not most:
        return ()
    tokens = offers.top_tokens[which, at, :most].tolist()
    logprobs, processed = offers.top_logprobs[which, :, at, :most].tolist()
    return tuple(row for row in zip(tokens, logprobs, processed, strict=True) if row[0] >= 0)
