"""The arrays of a step, made from what the scheduler planned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unspool.backend.base import Int32Array, StepBatch
from unspool.cache import BlockTable
from unspool.engine.branch import Branch
from unspool.engine.cached_backend import CachedBackend
from unspool.engine.track import Track

NO_TOKENS: Int32Array = np.empty(0, dtype=np.int32)


class TableRows:
    """Block tables as the rows of one array, of which a step rewrites only what has changed."""

    def __init__(self) -> None:
        self._array: Int32Array = np.full((8, 8), -1, dtype=np.int32)
        self._tables: list[BlockTable | None] = [None] * 8
        self._changes = [0] * 8

    def of(self, tables: Sequence[BlockTable]) -> Int32Array:
        """[tables, max_blocks] the blocks of each, -1 where there is none; valid until the next call."""
        self._grow(len(tables), max(table.num_blocks for table in tables))
        known, changes = self._tables, self._changes
        for i, table in enumerate(tables):
            if known[i] is not table or changes[i] != table.changes:
                row = self._array[i]
                row[: table.num_blocks] = table.blocks
                row[table.num_blocks :] = -1
                known[i], changes[i] = table, table.changes
        return self._array[: len(tables)]

    def _grow(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self._array.shape
        if rows <= have_rows and columns <= have_columns:
            return
        rows = have_rows if rows <= have_rows else 2 * rows
        columns = have_columns if columns <= have_columns else 2 * columns
        self._array = np.full((rows, columns), -1, dtype=np.int32)
        self._tables = [None] * rows
        self._changes = [0] * rows


class StepBuilder:
    """Makes the step of one backend out of planned branches."""

    def __init__(self, home: CachedBackend) -> None:
        self.home = home
        self._table_rows = TableRows()

    def build(self, branches: Sequence[Branch]) -> StepBatch | None:
        """The step of the branches' tracks that run here; ``None`` where none does.

        Sets each track's ``row``. A track's rows follow each other token by token, and exit by exit.
        """
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        starts = [0]
        tables: list[BlockTable] = []
        contexts: list[int] = []
        rows: list[int] = []
        exits: list[int] = []
        hidden: list[int] = []
        early = False
        for branch in branches:
            for track in branch.tracks:
                if track.home is not self.home or not track.run:
                    continue
                early = early or track.exits is not None
                first, count, start = len(tokens), len(track.run), track.start
                tokens += track.run
                slots += track.slots
                if count == 1:
                    positions.append(start)
                    parents.append(-1)
                else:
                    self._place(branch, track, first, positions, parents)
                starts.append(first + count)
                tables.append(track.table)
                contexts.append(start)
                track.row = len(rows)
                self._want(branch, track, first, rows, exits)
                if branch.request.strategy.want.hidden and track is branch.tracks[0]:
                    branch.hidden_row = len(hidden)
                    hidden += range(first + max(0, branch.known - start), first + count)
        if not tokens:
            return None
        # The arrays are parts of one: for few tokens, making arrays would be most of the work.
        count, runs, wanted = len(tokens), len(tables), len(rows)
        whole = np.array([*tokens, *positions, *slots, *parents, *starts, *contexts, *rows], dtype=np.int32)
        ends = 4 * count + runs + 1
        return StepBatch(
            tokens=whole[:count],
            positions=whole[count : 2 * count],
            slots=whole[2 * count : 3 * count],
            parents=whole[3 * count : 4 * count],
            run_starts=whole[4 * count : ends],
            block_table=self._table_rows.of(tables),
            context_lens=whole[ends : ends + runs],
            rows=whole[ends + runs : ends + runs + wanted],
            hidden_rows=np.array(hidden, dtype=np.int32) if hidden else NO_TOKENS,
            exits=np.array(exits, dtype=np.int32) if early else None,
        )

    def _place(
        self, branch: Branch, track: Track, first: int, positions: list[int], parents: list[int]
    ) -> None:
        """Positions and parents of a run of several tokens: one after another, then as the draft has them."""
        plain = len(track.run) - (0 if branch.drafted is None else len(branch.drafted.tree))
        positions += range(track.start, track.start + plain)
        parents.append(-1)
        parents += range(first, first + plain - 1)
        if branch.drafted is not None:
            last = first + plain - 1
            positions += [track.start + plain - 1 + depth for depth in branch.drafted.depths]
            parents += [last + 1 + parent for parent in branch.drafted.tree.parents]

    def _want(self, branch: Branch, track: Track, first: int, rows: list[int], exits: list[int]) -> None:
        """The rows of a run that are wanted: of all its tokens, of the last one and its draft, or none."""
        end = first + len(track.run)
        if branch.reading:
            wanted: Sequence[int] = range(max(first, first + branch.read - track.start), end)
        elif not branch.row:
            return
        elif branch.drafted is None:
            wanted = (end - 1,)
        else:
            wanted = range(end - 1 - len(branch.drafted.tree), end)
        depth = self.home.backend.spec.num_layers
        for token in wanted:
            for layers in track.exits or (depth,):
                rows.append(token)
                exits.append(layers)
