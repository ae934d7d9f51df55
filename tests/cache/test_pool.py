"""The block pool alone, beside a model of it that is slow and plain."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unspool.cache import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """``refs`` holds the count of each held block; ``idle`` those kept without references, oldest first."""

    @initialize(blocks=st.integers(1, 8))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.evicted: list[int] = []
        self.pool.on_evict = self.evicted.append
        self._as_new()

    def _as_new(self) -> None:
        self.refs: dict[int, int] = {}
        self.kept: set[int] = set()
        self.idle: list[int] = []

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        free = self.pool.num_blocks - len(self.refs) - len(self.idle)
        taken = self.pool.take(count)
        if count > free + len(self.idle):
            assert taken is None
            assert self.evicted == []
            return
        oldest, self.idle = self.idle[: max(0, count - free)], self.idle[max(0, count - free) :]
        assert taken is not None
        assert self._evictions() == oldest
        assert len(set(taken)) == count
        assert not set(taken) & (self.refs.keys() | set(self.idle))
        assert set(oldest) <= set(taken)
        self.kept -= set(oldest)
        self.refs |= dict.fromkeys(taken, 1)

    @precondition(lambda self: self.refs or self.idle)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([*self.refs, *self.idle]))
        self.pool.share(block)
        if block in self.idle:
            self.idle.remove(block)
        self.refs[block] = self.refs.get(block, 0) + 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.refs)))
        self.pool.release(block)
        self.refs[block] -= 1
        if self.refs[block] == 0:
            del self.refs[block]
            if block in self.kept:
                self.idle.append(block)

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.refs)))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.forget(block)
        self.pool.forget(block)
        assert self._evictions() == [block]
        self.kept.remove(block)
        self.idle = [b for b in self.idle if b != block]

    def _evictions(self) -> list[int]:
        evicted = self.evicted.copy()
        self.evicted.clear()
        return evicted

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        pool = self.pool
        assert pool.num_free == pool.num_blocks - len(self.refs)
        assert pool.num_kept == len(self.idle)
        for block in range(pool.num_blocks):
            assert pool.references(block) == self.refs.get(block, 0)
            assert pool.holders[block] == self.refs.get(block, 0) + (block in self.kept)
        assert self.evicted == []

    @invariant()
    def what_nobody_holds_is_refused(self) -> None:
        for block in range(self.pool.num_blocks):
            if block not in self.refs:
                with pytest.raises(ValueError, match="cannot be released"):
                    self.pool.release(block)
                if block not in self.idle:
                    with pytest.raises(ValueError, match="cannot be shared"):
                        self.pool.share(block)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_most_recently_freed_block_is_taken_first() -> None:
    pool = BlockPool(5)
    taken = pool.take(5)
    assert taken is not None
    for block in (3, 1, 4):
        pool.release(block)
    assert [pool.take(1), pool.take(1), pool.take(1)] == [[4], [1], [3]]


def test_a_kept_block_is_taken_after_every_free_one() -> None:
    pool = BlockPool(3)
    pool.take(3)
    pool.keep(0)
    for block in (1, 0, 2):
        pool.release(block)
    assert [pool.take(1), pool.take(1), pool.take(1), pool.take(1)] == [[2], [1], [0], None]
