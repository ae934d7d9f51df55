"""From planned branches to drawn tokens: forward passes, combined rows, faults traced to their request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np

from unspool.backend.base import Float32Array, StepOutput
from unspool.engine.batch import PlanBuilder, StepBuilder
from unspool.engine.branch import Branch
from unspool.engine.cached_backend import CachedBackend
from unspool.engine.flight import Flight
from unspool.errors import ParameterError, RowError
from unspool.sampling.plan import RowResults, RowStatus
from unspool.strategy import Figures

NO_HIDDEN: Float32Array = np.empty((0, 0), dtype=np.float32)
Outputs = Mapping[CachedBackend, StepOutput]


Drawn = tuple[Branch, int, int, Figures]
"""What came of one row: its branch, the node of the branch's draft that it follows (-1: the branch's last
token), the token that was drawn, and its figures."""


class Computer:
    """Computes planned branches on their backends.

    fail: ends a request with an error.
    """

    def __init__(
        self,
        homes: Sequence[CachedBackend],
        main: CachedBackend,
        fail: Callable[[Flight, Exception], None],
    ) -> None:
        self.main = main
        self.fail = fail
        self.forward_seconds = self.sample_seconds = 0.0
        self._steps = {home: StepBuilder(home) for home in homes}
        self._plan, self._combined_plan = PlanBuilder(), PlanBuilder()

    def compute(self, branches: Sequence[Branch]) -> list[Drawn]:
        """Compute what is planned, and draw from the rows that are wanted.

        A step that fails is computed again by halves, until the request that makes it fail is alone and ends
        with the error. Where every request fails, so do all.
        """
        branches = [branch for branch in branches if branch.growing]
        if not branches:
            return []
        try:
            return self._forward(branches)
        except Exception as error:
            if len({branch.flight for branch in branches}) == 1:
                self.fail(branches[0].flight, error)
                return []
        half = len(branches) // 2
        return self.compute(branches[:half]) + self.compute(branches[half:])

    def _forward(self, branches: Sequence[Branch]) -> list[Drawn]:
        outputs: dict[CachedBackend, StepOutput] = {}
        steps = [(home, builder.build(branches)) for home, builder in self._steps.items()]
        built = perf_counter()
        for home, step in steps:
            home.copy()
            if step is not None:
                outputs[home] = home.backend.forward(step)
        self.forward_seconds += perf_counter() - built
        return self._draw(branches, outputs)

    def _draw(self, branches: Sequence[Branch], outputs: Outputs) -> list[Drawn]:
        """Draw from the rows of one track as they lie, and from combined ones."""
        drawing: list[Branch] = []
        nodes: list[int] = []
        rows: list[int] = []
        drawn: list[Drawn] = []
        for branch in branches:
            if branch.request.read is not None:
                self._read(branch, outputs)
            elif not branch.row:
                continue
            elif branch.request.source is not None:
                drawn += self._draw_combined(branch, outputs)
            else:
                first = branch.tracks[0].row
                count = 1 if branch.drafted is None else 1 + len(branch.drafted.tree)
                drawing += [branch] * count
                nodes += range(-1, count - 1)
                rows += range(first, first + count)
        if drawing:
            drawn += self._sample(self._plan, drawing, nodes, rows, outputs[self.main])
        return drawn

    def _read(self, branch: Branch, outputs: Outputs) -> None:
        """Give a reader the rows that it has not read."""
        track, read = branch.tracks[0], branch.request.read
        end, first = track.start + len(track.run), max(track.start, branch.read)
        if read is not None and end > first:
            rows = outputs[track.home].logits.numpy()
            try:
                read(first, rows[track.row : track.row + end - first])
            except Exception as error:  # a caller's own code
                self.fail(branch.flight, error)
                return
            branch.read = end
        if branch.read == len(track.prefix):
            branch.finish("length", None)

    def _draw_combined(self, branch: Branch, outputs: Outputs) -> list[Drawn]:
        """Combine the rows of a branch's tracks, for its last token and each of its draft's, and draw."""
        source, nodes = branch.request.source, 0 if branch.drafted is None else len(branch.drafted.tree)
        assert source is not None
        combined = []
        for at in range(1 + nodes):
            rows = []
            for track in branch.tracks:
                first = track.row + at * track.rows
                rows.append(outputs[track.home].logits.numpy()[first : first + track.rows])
            try:
                combined.append(self._checked(source.combine(np.concatenate(rows))))
            except Exception as error:  # a caller's own code
                self.fail(branch.flight, error)
                return []
        count = 1 + nodes
        output = StepOutput(CombinedRows(np.stack(combined)), NO_HIDDEN)
        return self._sample(self._combined_plan, [branch] * count, range(-1, nodes), range(count), output)

    def _checked(self, row: object) -> Float32Array:
        """A combined row, if it is one. Raises ``ParameterError``."""
        size = self.main.backend.spec.vocab_size
        if isinstance(row, np.ndarray) and row.dtype == np.float32 and row.shape == (size,):
            return row
        what = f"{row.dtype} {list(row.shape)}" if isinstance(row, np.ndarray) else type(row).__name__
        raise ParameterError(f"a source must combine to one float32 row of {size}, not {what}")

    def _sample(
        self,
        builder: PlanBuilder,
        branches: list[Branch],
        nodes: Sequence[int],
        rows: Sequence[int],
        output: StepOutput,
    ) -> list[Drawn]:
        """Draw for each branch and node; requests whose row has no law end."""
        plan = builder.build(branches, nodes, rows)
        began = perf_counter()
        results = self.main.backend.sample(output, plan)
        self.sample_seconds += perf_counter() - began
        tokens, statuses, ranks, kept = results.integers.tolist()
        logprobs, processed, entropies = results.figures.tolist()
        tops = alternatives(results, branches) if plan.num_logprobs else [()] * len(branches)
        figures = zip(logprobs, processed, ranks, entropies, kept, tops, strict=True)
        drawn = list(zip(branches, nodes, tokens, figures, strict=True))
        if not any(statuses):
            return drawn
        for branch, node, status in zip(branches, nodes, statuses, strict=True):
            if status and node < 0:  # a guess's row may never be needed
                self.fail(branch.flight, row_error(branch, RowStatus(status)))
        return [row for row, status in zip(drawn, statuses, strict=True) if not status and row[0].growing]


class CombinedRows:
    """Rows that were made here."""

    def __init__(self, rows: Float32Array) -> None:
        self._rows = rows

    def numpy(self) -> Float32Array:
        """[R, vocab_size]."""
        return self._rows


def row_error(branch: Branch, status: RowStatus) -> RowError:
    """What is wrong with the row after a branch's last token."""
    rules = ", ".join(rule.kind.name.lower() for rule in branch.request.chain.rules) or "none"
    what = "holds NaN" if status == RowStatus.NOT_A_NUMBER else "has no token left"
    return RowError(
        f"request {branch.flight.number}, sample {branch.index}, token {len(branch.token_ids)}: "
        f"the row of logits {what} (rules: {rules})"
    )


def alternatives(results: RowResults, branches: Sequence[Branch]) -> Sequence[tuple[tuple[int, float], ...]]:
    """The most probable tokens of each row, with log-probabilities: as many as its own request asked for."""
    wanted = [branch.request.params.logprobs for branch in branches]
    rows = zip(results.top_tokens.tolist(), results.top_logprobs.tolist(), wanted, strict=True)
    return [tuple(zip(ids[:most], logprobs[:most], strict=True)) for ids, logprobs, most in rows]
