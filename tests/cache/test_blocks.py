"""The block pool and block tables: laws that hold after any sequence of operations."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unspool.cache import BLOCK_SIZE, BlockPool, BlockTable, blocks_for_memory, blocks_for_tokens, measure
from unspool.errors import ParameterError


class CacheMachine(RuleBasedStateMachine):
    """Tables over a small pool, with simulated contents: each position holds a number of its own."""

    @initialize(blocks=st.integers(1, 12))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.memory = np.full(blocks * BLOCK_SIZE, -1)
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.written = 0
        self.copied_rows: dict[BlockTable, tuple[int, list[int]]] = {}

    @rule()
    def open(self) -> None:
        if len(self.tables) < 6:
            self.tables.append((BlockTable(self.pool), []))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.one_of(st.just(1), st.integers(0, 40)))
    def append(self, data: st.DataObject, count: int) -> None:
        table, contents = data.draw(st.sampled_from(self.tables))
        before = (table.length, table.blocks.tolist(), self.pool.num_free)
        appended = table.append(count)
        if appended is None:
            assert before == (table.length, table.blocks.tolist(), self.pool.num_free)
            assert blocks_for_tokens(count) + 1 > self.pool.num_free
            return
        for source, target in appended.copies:
            self.memory[target] = self.memory[source]
        self._write(contents, appended.slots.tolist())

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def next_slot(self, data: st.DataObject) -> None:
        table, contents = data.draw(st.sampled_from(self.tables))
        room = table.length % BLOCK_SIZE > 0 and self.pool.references(int(table.blocks[-1])) == 1
        before = (table.length, table.changes)
        slot = table.next_slot()
        if slot is None:
            assert not room
            assert before == (table.length, table.changes)
        else:
            assert room
            self._write(contents, [slot])

    def _write(self, contents: list[int], slots: list[int]) -> None:
        new = list(range(self.written, self.written + len(slots)))
        self.written += len(slots)
        self.memory[slots] = new
        contents += new

    @precondition(lambda self: 0 < len(self.tables) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, contents = data.draw(st.sampled_from(self.tables))
        free = self.pool.num_free
        self.tables.append((table.fork(), list(contents)))
        assert self.pool.num_free == free

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        table, contents = data.draw(st.sampled_from(self.tables))
        length = data.draw(st.integers(0, table.length))
        table.truncate(length)
        del contents[length:]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        table, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        table.free()
        table.free()
        assert table.length == table.num_blocks == 0

    @invariant()
    def counts_match_the_tables(self) -> None:
        held = [block for table, _ in self.tables for block in table.blocks.tolist()]
        counts = np.bincount(np.array(held, dtype=int), minlength=self.pool.num_blocks)
        assert counts.tolist() == [self.pool.references(b) for b in range(self.pool.num_blocks)]
        assert self.pool.num_free == int(np.sum(counts == 0))
        assert len(set(self.pool._free)) == len(self.pool._free)
        assert all(counts[b] == 0 for b in self.pool._free)

    @invariant()
    def every_branch_reads_what_it_wrote(self) -> None:
        for table, contents in self.tables:
            at = np.arange(table.length)
            slots = table.blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
            assert self.memory[slots].tolist() == contents
            assert table.num_blocks == blocks_for_tokens(table.length)

    @invariant()
    def a_row_is_stale_only_if_the_table_says_so(self) -> None:
        for table, _ in self.tables:
            changes, row = self.copied_rows.get(table, (-1, []))
            assert changes != table.changes or row == table.blocks.tolist()
            self.copied_rows[table] = (table.changes, table.blocks.tolist())

    @invariant()
    def use_counts_each_filled_slot_once(self) -> None:
        filled = {
            (block, offset)
            for table, _ in self.tables
            for at, block in enumerate(table.blocks.tolist())
            for offset in range(min(BLOCK_SIZE, table.length - at * BLOCK_SIZE))
        }
        use = measure(self.pool, [table for table, _ in self.tables])
        assert use.filled == len(filled)
        assert use.allocated_slots == BLOCK_SIZE * len({block for block, _ in filled})
        assert use.waste * use.allocated_slots == pytest.approx(use.allocated_slots - use.filled)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table, _ in self.tables:
                table.free()
            assert self.pool.num_free == self.pool.num_blocks


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_full_pool_answers_none_and_changes_nothing() -> None:
    pool = BlockPool(2)
    table = BlockTable(pool)
    assert table.append(33) is None
    assert table.append(32) is not None
    assert table.append(1) is None
    assert (table.length, pool.num_free) == (32, 0)


def test_only_the_last_writer_of_a_shared_block_writes_in_place() -> None:
    pool = BlockPool(3)
    first = BlockTable(pool)
    first.append(5)
    second = first.fork()
    moved = first.append(1)
    kept = second.append(1)
    assert moved is not None
    assert moved.copies.shape == (5, 2)
    assert kept is not None
    assert kept.copies.shape == (0, 2)


def test_a_full_shared_block_is_never_copied() -> None:
    pool = BlockPool(3)
    first = BlockTable(pool)
    first.append(BLOCK_SIZE)
    appended = first.fork().append(1)
    assert appended is not None
    assert appended.copies.shape == (0, 2)


def test_a_shortened_table_goes_on_in_its_own_last_block() -> None:
    for length in range(1, 50):
        pool = BlockPool(8)
        table, other = BlockTable(pool), BlockTable(pool)
        table.append(50)
        table.truncate(length)
        other.append(1)  # takes a block that was just given back
        offset = length % BLOCK_SIZE
        own = table.blocks[-1] * BLOCK_SIZE + offset if offset else None
        assert table.next_slot() == own


def test_misuse_is_an_error() -> None:
    with pytest.raises(ParameterError):
        BlockPool(0)
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="free"):
        pool.release(0)
    with pytest.raises(ValueError, match="free"):
        pool.share(0)
    with pytest.raises(ValueError, match="free"):
        pool.keep(0)
    table = BlockTable(pool)
    with pytest.raises(ValueError, match="truncate"):
        table.truncate(1)
    table.append(1)
    with pytest.raises(ValueError, match="adopt"):
        table.adopt([0])


def test_sizes() -> None:
    assert [blocks_for_tokens(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert blocks_for_memory(1000, 10) == 6
