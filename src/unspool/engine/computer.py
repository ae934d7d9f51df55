"""From planned branches to drawn tokens: forward passes, combined rows, faults traced to their request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from unspool.backend.base import Float32Array, StepOutput
from unspool.engine.batch import StepBuilder
from unspool.engine.branch import Branch
from unspool.engine.cached_backend import CachedBackend
from unspool.engine.host import Fail, Host
from unspool.engine.offer_sampler import OfferSampler
from unspool.engine.row_sampler import Drawn, Fault, RowSampler, Wanted, output_of
from unspool.errors import ParameterError

Outputs = Mapping[CachedBackend, StepOutput]


class Computer:
    """Computes planned branches on their backends.

    fail: ends a request with an error.
    host: runs the requests' own code.
    """

    def __init__(
        self,
        homes: Sequence[CachedBackend],
        main: CachedBackend,
        fail: Fail,
        host: Host,
    ) -> None:
        self.main = main
        self.fail = fail
        self.host = host
        self.forward_seconds = 0.0
        self.sampler = RowSampler(main.backend, host)
        self.offers = OfferSampler(self.sampler)
        self._steps = {home: StepBuilder(home) for home in homes}

    def attach(self, home: CachedBackend) -> None:
        """Compute on a further backend too."""
        self._steps[home] = StepBuilder(home)

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
        for branch in branches:
            if branch.request.strategy.want.hidden:
                self._take_states(branch, outputs)
        return self._draw(branches, outputs)

    def _take_states(self, branch: Branch, outputs: Outputs) -> None:
        """Keep the hidden states of the tokens that a branch's first track has run."""
        track = branch.tracks[0]
        count = track.start + len(track.run) - branch.known
        if track.run and count > 0:
            states = outputs[track.home].hidden[branch.hidden_row : branch.hidden_row + count]
            branch.take_states(states.copy())

    def _draw(self, branches: Sequence[Branch], outputs: Outputs) -> list[Drawn]:
        """Draw from the rows of one track as they lie, and from combined ones."""
        wanted: list[Wanted] = []
        drawn: list[Drawn] = []
        for branch in branches:
            first = branch.tracks[0].row
            if branch.reading:
                first += self._read(branch, outputs) - 1  # its last token's row is the last of those it reads
            if not branch.row or not branch.growing:
                continue
            if branch.request.source is not None:
                drawn += self._draw_combined(branch, outputs)
            elif branch.drafted is None:
                wanted.append(Wanted(branch, -1, first))
            else:
                wanted += (
                    Wanted(branch, node, first + 1 + node) for node in range(-1, len(branch.drafted.tree))
                )
        if wanted:
            drawn += self._sample(wanted, outputs[self.main])
        return drawn

    def _sample(self, wanted: list[Wanted], output: StepOutput, combined: bool = False) -> list[Drawn]:
        """Draw from rows, or take what they offer, as each request's strategy wants it."""
        offered = [row for row in wanted if row.branch.request.offered]
        if not offered:
            return self._settled(*self.sampler.draw(wanted, output, combined))
        drawn = self._settled(*self.offers.take(offered, output))
        plain = [row for row in wanted if not row.branch.request.offered]
        return drawn + (self._settled(*self.sampler.draw(plain, output, combined)) if plain else [])

    def _settled(self, drawn: list[Drawn], faults: list[Fault]) -> list[Drawn]:
        """End the requests whose rows have no law; what is left. A guess's row may never be needed."""
        if not faults:
            return drawn
        for branch, node, error in faults:
            if node < 0:
                self.fail(branch.flight, error)
        return [row for row in drawn if row.branch.growing]

    def _read(self, branch: Branch, outputs: Outputs) -> int:
        """Give a reader the rows that it has not read; how many there were."""
        track, reader = branch.tracks[0], branch.reader
        end, first = track.start + len(track.run), max(track.start, branch.read)
        if end <= first or reader is None:
            return 0
        rows = outputs[track.home].logits.numpy()[track.row : track.row + end - first]

        def read() -> None:
            reader(first, rows)
            branch.read = end

        if branch.request.read is not None or branch.request.chain.custom is not None:
            self.host.run(branch.flight, read, self.fail)
        else:  # the engine's own, which may be stopped anywhere and read again
            try:
                read()
            except Exception as error:
                self.fail(branch.flight, error)
        if not branch.growing:
            return 0
        if not branch.reading and branch.request.max_tokens == 0:
            branch.finish("length", None)
        return end - first

    def _draw_combined(self, branch: Branch, outputs: Outputs) -> list[Drawn]:
        """Combine the rows of a branch's tracks, for its last token and each of its draft's, and draw."""
        source, nodes = branch.request.source, 0 if branch.drafted is None else len(branch.drafted.tree)
        assert source is not None
        combined = np.empty((1 + nodes, self.main.backend.spec.vocab_size), np.float32)

        def combine() -> None:
            for at in range(1 + nodes):
                rows = []
                for track in branch.tracks:
                    first = track.row + at * track.rows
                    rows.append(outputs[track.home].logits.numpy()[first : first + track.rows])
                combined[at] = self._checked(source.combine(np.concatenate(rows)))

        self.host.run(branch.flight, combine, self.fail)
        if not branch.growing:
            return []
        wanted = [Wanted(branch, node, 1 + node) for node in range(-1, nodes)]
        return self._sample(wanted, output_of(combined), combined=True)

    def _checked(self, row: object) -> Float32Array:
        """A combined row, if it is one. Raises ``ParameterError``."""
        size = self.main.backend.spec.vocab_size
        if isinstance(row, np.ndarray) and row.dtype == np.float32 and row.shape == (size,):
            return row
        what = f"{row.dtype} {list(row.shape)}" if isinstance(row, np.ndarray) else type(row).__name__
        raise ParameterError(f"a source must combine to one float32 row of {size}, not {what}")
