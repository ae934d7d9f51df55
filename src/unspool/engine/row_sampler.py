"""From rows of logits to drawn tokens: one call for most, and a way around it for a caller's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from unspool.backend.base import Backend, Float32Array, Int32Array, StepOutput
from unspool.engine.branch import Branch
from unspool.engine.flight import Flight
from unspool.engine.host import Host
from unspool.engine.plans import PlanBuilder, PlannedRow, memory_at, plan_of, position_at
from unspool.engine.timed_sampler import TimedSampler
from unspool.engine.trace import trace_of
from unspool.errors import RowError
from unspool.sampling.chain import Chain, ChainMemory
from unspool.sampling.distribution import Distribution
from unspool.sampling.plan import DRAW, RowResults, RowStatus
from unspool.sampling.rules import Custom, NoiseSource
from unspool.sampling.rules.custom import TokenMemory
from unspool.sampling.sampler import NoLawError, log_probabilities
from unspool.strategy import Figures, Law, Offer, Ranked

NO_HIDDEN: Float32Array = np.empty((0, 0), dtype=np.float32)


class Wanted(NamedTuple):
    """A row to draw from."""

    branch: Branch
    node: int
    """The node of the branch's draft that it follows; -1: the branch's last token."""
    row: int
    """Which of the output's rows."""


class Drawn(NamedTuple):
    """What came of one row."""

    branch: Branch
    node: int
    token: int
    figures: Figures
    offers: tuple[Offer, ...] = ()
    law: Law | None = None


class Fault(NamedTuple):
    """A row that nothing could be drawn from, and why."""

    branch: Branch
    node: int
    error: BaseException


class OwnRows:
    """Rows of logits that were made here."""

    def __init__(self, rows: Float32Array) -> None:
        self._rows = rows

    def numpy(self) -> Float32Array:
        """[R, vocab_size]."""
        return self._rows


def output_of(rows: Float32Array) -> StepOutput:
    """Rows that were made here, [R, vocab_size], as a step gives its own."""
    return StepOutput(OwnRows(rows), NO_HIDDEN)


class RowSampler:
    """Draws from rows on one backend.

    host: runs the requests' own rules.
    """

    def __init__(self, backend: Backend, host: Host) -> None:
        self.host = host
        self.timed = TimedSampler(backend)
        self._builders = (PlanBuilder(), PlanBuilder())

    @property
    def seconds(self) -> float:
        """Spent in the backend's sampler."""
        return self.timed.seconds

    def draw(
        self, wanted: Sequence[Wanted], output: StepOutput, combined: bool = False
    ) -> tuple[list[Drawn], list[Fault]]:
        """Draw from each wanted row.

        Where a rule learns from what is drawn, the row of a guess is looked at after the row before it, and
        only if that gave the guess: no other can matter.

        combined: whether these are rows that a source made, which come apart from a step's own.
        """
        builder = self._builders[combined]
        if not any(row.branch.request.special for row in wanted):
            return self._draw_together(builder, wanted, output)
        plain = [row for row in wanted if not row.branch.request.special]
        drawn, faults = self._draw_together(builder, plain, output)
        for row in wanted:
            if row.branch.request.special and (row.node < 0 or not row.branch.request.chain.learns):
                self._draw_alone(row, output, drawn, faults)
        return drawn, faults

    def _draw_together(
        self, builder: PlanBuilder, wanted: Sequence[Wanted], output: StepOutput
    ) -> tuple[list[Drawn], list[Fault]]:
        if not wanted:
            return [], []
        branches = [row.branch for row in wanted]
        nodes = [row.node for row in wanted]
        plan = builder.build(branches, nodes, [row.row for row in wanted])
        results = self.timed.sample(output, plan)
        figures = figures_of(results)
        if plan.num_logprobs:
            most = [branch.request.params.logprobs for branch in branches]
            figures = with_best(figures, results, most)
        drawn = list(map(Drawn, branches, nodes, results.tokens.tolist(), figures))
        statuses = results.status.tolist()
        if not any(statuses):
            return drawn, []
        faults = [
            Fault(branch, node, row_error(branch, RowStatus(status)))
            for branch, node, status in zip(branches, nodes, statuses, strict=True)
            if status
        ]
        return [row for row, status in zip(drawn, statuses, strict=True) if not status], faults

    def _draw_alone(self, row: Wanted, output: StepOutput, drawn: list[Drawn], faults: list[Fault]) -> None:
        """Draw from a row that needs more than the one call, and go on along the draft where it was right."""
        branch, node, at = row
        request = branch.request

        def look() -> tuple[int, Figures]:
            noise = NoiseSource(request.key, position_at(branch, node), branch.index)
            return self.look(
                output, at, request.chain, memory_at(branch, node), noise,
                num_logprobs=request.params.logprobs, traced=request.params.trace,
            )  # fmt: skip

        def failed(_: Flight, error: BaseException) -> None:
            of_row = row_error(branch, error.status) if isinstance(error, NoLawError) else error
            faults.append(Fault(branch, node, of_row))

        while True:
            looked = self.host.run(branch.flight, look, failed)
            if looked is None:
                return
            drawn.append(Drawn(branch, node, *looked))
            if not request.chain.learns or branch.drafted is None:
                return
            branch.drafted.rows[node] = looked
            child = branch.drafted.tree.child(node, looked[0])
            if child is None:
                return
            node, at = child, row.row + 1 + child

    def look(
        self,
        output: StepOutput,
        at: int,
        chain: Chain,
        memory: ChainMemory | None,
        noise: NoiseSource,
        *,
        given: int = DRAW,
        num_logprobs: int = 0,
        traced: bool = False,
    ) -> tuple[int, Figures]:
        """The token that is drawn from one row (or the given one), and its figures.

        Raises ``NoLawError``, and what a caller's own rule raises.
        """
        own = self.own_rows(output, at, chain, memory, noise)
        return self.figure(
            output, at, chain, memory, noise, own, given=given, num_logprobs=num_logprobs, traced=traced
        )

    def figure(
        self,
        output: StepOutput,
        at: int,
        chain: Chain,
        memory: ChainMemory | None,
        noise: NoiseSource,
        own: StepOutput | None,
        *,
        given: int = DRAW,
        num_logprobs: int = 0,
        traced: bool = False,
    ) -> tuple[int, Figures]:
        """The same, where ``own_rows`` has been asked. Raises ``NoLawError``."""
        end = len(chain.rules)
        if own is None:
            plan = plan_of([PlannedRow(at, chain, 0, end, memory, noise, given)], num_logprobs)
            results = self.timed.sample(output, plan)
        else:
            assert chain.custom is not None
            after = PlannedRow(0, chain, chain.custom + 1, end, memory, noise, given)
            results = self._around(output, at, own, after, num_logprobs)
        if results.status[0]:
            raise NoLawError(RowStatus(int(results.status[0])))
        [figures] = figures_of(results)
        if num_logprobs:
            [figures] = with_best([figures], results, [num_logprobs])
        if traced:
            figures = figures._replace(trace=trace_of(self.timed, output, at, chain, memory, noise, own))
        return int(results.tokens[0]), figures

    def figures(
        self, output: StepOutput, rows: Iterable[PlannedRow], num_logprobs: int
    ) -> tuple[list[Figures], list[RowStatus]]:
        """The figures of several rows' tokens, and which rows have a law, by one call of the backend's."""
        results = self.timed.sample(output, plan_of(rows, num_logprobs))
        statuses = [RowStatus(status) for status in results.status.tolist()]
        figures = figures_of(results)
        if num_logprobs:
            figures = with_best(figures, results, [num_logprobs] * len(figures))
        return figures, statuses

    def law(
        self,
        output: StepOutput,
        at: int,
        chain: Chain,
        memory: ChainMemory | None,
        noise: NoiseSource,
        own: StepOutput | None,
    ) -> Distribution:
        """What a chain makes of one row, where ``own_rows`` has been asked. Raises ``NoLawError``."""
        first = 0
        if own is not None:
            assert chain.custom is not None
            output, at, first = own, 0, chain.custom + 1
        planned = PlannedRow(at, chain, first, len(chain.rules), memory, noise)
        return Distribution.of(*self._candidates(output, planned))

    def _candidates(self, output: StepOutput, planned: PlannedRow) -> tuple[Int32Array, Float32Array]:
        [(status, ids, logits)] = self.timed.laws(output, plan_of([planned]))
        if status:
            raise NoLawError(RowStatus(status))
        return ids, logits

    def own_rows(
        self, output: StepOutput, at: int, chain: Chain, memory: ChainMemory | None, noise: NoiseSource
    ) -> StepOutput | None:
        """The row that a caller's own rules make of what the rules before them leave; ``None`` without any.

        Raises ``NoLawError``, and what a rule raises.
        """
        if chain.custom is None:
            return None
        assert memory is not None
        custom, remembered = chain.rules[chain.custom], memory.memories[chain.custom]
        assert isinstance(custom, Custom)
        assert isinstance(remembered, TokenMemory)
        ids, logits = self._candidates(output, PlannedRow(at, chain, 0, chain.custom, memory, noise))
        row = np.full(self.timed.vocab_size, -np.inf, np.float32)
        row[ids] = logits
        return output_of(custom.process(remembered.ids.copy(), row)[None])

    def _around(
        self, output: StepOutput, at: int, own: StepOutput, after: PlannedRow, num_logprobs: int
    ) -> RowResults:
        """Draw from a row of the caller's own, with the raw figures of the row that it was made from."""
        results = self.timed.sample(own, plan_of([after], num_logprobs))
        if results.status[0]:
            return results
        before = PlannedRow(at, NO_CHAIN, 0, 0, None, after.noise, int(results.tokens[0]))
        raw = self.timed.sample(output, plan_of([before], num_logprobs))
        results.ranks[:] = raw.ranks
        results.logprobs[:] = raw.logprobs
        results.entropies[:] = raw.entropies
        if num_logprobs:
            results.top_tokens[0], results.top_logprobs[0, 0] = raw.top_tokens[0], raw.top_logprobs[0, 0]
            model = Distribution.of(*self._candidates(output, before))
            law = Distribution.of(*self._candidates(own, after))
            results.top_logprobs[0, 1, 0] = log_probabilities(law, results.top_tokens[0, 0])
            results.top_logprobs[1, 0, 0] = log_probabilities(model, results.top_tokens[1, 0])
        return results


NO_CHAIN = Chain()


def figures_of(results: RowResults) -> list[Figures]:
    """The figures of each row."""
    _, _, ranks, kept = results.integers.tolist()
    return list(map(Figures, *results.figures.tolist(), ranks, kept))


def with_best(figures: Sequence[Figures], results: RowResults, most: Sequence[int]) -> list[Figures]:
    """The figures with as many of the most probable tokens as each row's own request asked for."""
    raw, law = (ranked(results, which, most) for which in (0, 1))
    return [
        each._replace(best=best, best_processed=processed)
        for each, best, processed in zip(figures, raw, law, strict=True)
    ]


def ranked(results: RowResults, which: int, most: Sequence[int]) -> list[Ranked]:
    """The most probable tokens of each row's model law (0) or of the law that it was drawn from (1)."""
    tokens = results.top_tokens[which].tolist()
    logprobs, processed = results.top_logprobs[which].tolist()
    return [
        tuple(row for row in zip(*columns, strict=True) if row[0] >= 0)
        for columns in (
            (ids[:n], before[:n], after[:n])
            for ids, before, after, n in zip(tokens, logprobs, processed, most, strict=True)
        )
    ]


def row_error(branch: Branch, status: RowStatus) -> RowError:
    """What is wrong with the row after a branch's last token."""
    where = f"request {branch.flight.number}, sample {branch.index}, token {len(branch.token_ids)}"
    return no_law(where, branch.request.chain, status)


def no_law(where: str, chain: Chain, status: RowStatus) -> RowError:
    """What is wrong with a row, and which rules it went through."""
    names = [rule.name for rule in chain.named]
    what = "has no token left"
    if status == RowStatus.NOT_A_NUMBER:
        what = "holds NaN or +infinity, or a rule took it beyond float32"
    return RowError(f"{where}: the row of logits {what} (rules: {', '.join(names) or 'none'})")
