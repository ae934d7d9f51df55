"""The prefix cache: what is found by a digest holds the very tokens that the digest is of."""

from hashlib import blake2b
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unspool.cache import BLOCK_SIZE, BlockPool, BlockTable, HashChain, PrefixCache

SALTS = st.sampled_from([None, "", "tenant"])
RUNS = st.lists(st.tuples(st.sampled_from([7, 8]), st.sampled_from([1, 8, 16, 24])), min_size=1, max_size=4)
"""Runs of one token: few enough that sequences often begin alike, and part within blocks and between."""


Content = tuple[str | None, tuple[int, ...]]
"""A salt, and the tokens up to a position: keys and values depend on them all."""


def spelled(runs: list[tuple[int, int]]) -> list[int]:
    return [token for token, count in runs for _ in range(count)]


def chained(salt: str | None, tokens: list[int]) -> HashChain:
    chain = HashChain(salt)
    chain.extend(tokens)
    return chain


class Sequence:
    """A table, and what it was given to hold."""

    def __init__(self, pool: BlockPool, salt: str | None) -> None:
        self.table, self.salt, self.tokens = BlockTable(pool), salt, list[int]()

    def content(self, at: int) -> Content:
        return self.salt, tuple(self.tokens[: at + 1])


class PrefixMachine(RuleBasedStateMachine):
    """Sequences over a small pool with simulated contents, which begin from what is cached."""

    @initialize(blocks=st.integers(2, 10))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool)
        self.memory: list[Content | None] = [None] * (blocks * BLOCK_SIZE)
        self.sequences: list[Sequence] = []

    @precondition(lambda self: len(self.sequences) < 5)
    @rule(salt=SALTS, runs=RUNS, most=st.one_of(st.none(), st.integers(0, 3)))
    def open(self, salt: str | None, runs: list[tuple[int, int]], most: int | None) -> None:
        tokens = spelled(runs)
        hashes = chained(salt, tokens).hashes
        matched, free = self.cache.match(hashes), self.pool.num_free
        assert (matched, free) == (self.cache.match(hashes), self.pool.num_free)
        blocks = self.cache.take(hashes, most)
        assert len(blocks) == (matched if most is None else min(matched, most))
        opened = Sequence(self.pool, salt)
        opened.table.adopt(blocks)
        opened.tokens = tokens[: opened.table.length]
        self.sequences.append(opened)
        self._write(opened, tokens[opened.table.length :])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), runs=RUNS)
    def append(self, data: st.DataObject, runs: list[tuple[int, int]]) -> None:
        self._write(data.draw(st.sampled_from(self.sequences)), spelled(runs))

    def _write(self, sequence: Sequence, tokens: list[int]) -> None:
        start = sequence.table.length
        slot = sequence.table.next_slot() if len(tokens) == 1 else None
        if slot is None:
            appended = sequence.table.append(len(tokens))
            if appended is None:
                return
            for source, target in appended.copies:
                self.memory[target] = self.memory[source]
            slots = appended.slots.tolist()
        else:
            slots = [slot]
        sequence.tokens += tokens
        for at, written in enumerate(slots, start):
            self.memory[written] = sequence.content(at)

    @precondition(lambda self: 0 < len(self.sequences) < 5)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.sequences))
        child = Sequence(self.pool, parent.salt)
        child.table, child.tokens = parent.table.fork(), parent.tokens.copy()
        self.sequences.append(child)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        length = data.draw(st.integers(0, sequence.table.length))
        sequence.table.truncate(length)
        del sequence.tokens[length:]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        hashes = chained(sequence.salt, sequence.tokens).hashes
        for digest, block in zip(hashes, sequence.table.blocks.tolist(), strict=False):
            known = self.cache.take([digest])
            self.cache.insert(digest, block)
            assert self.cache.take([digest]) == (known or [block])
            for reference in [*known, *(known or [block])]:
                self.pool.release(reference)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1))).table.free()

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for sequence in self.sequences:
            assert sequence.table.length == len(sequence.tokens)
            for at in range(sequence.table.length):
                slot = sequence.table.blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
                assert self.memory[slot] == sequence.content(at)

    @invariant()
    def what_is_found_is_what_was_asked_for(self) -> None:
        for block, digest in self.cache._digests.items():
            content = self.memory[block * BLOCK_SIZE + BLOCK_SIZE - 1]
            assert content is not None
            salt, tokens = content
            assert chained(salt, list(tokens)).hashes[-1:] == [digest]
            for offset in range(BLOCK_SIZE):
                prefix = tokens[: len(tokens) - BLOCK_SIZE + offset + 1]
                assert self.memory[block * BLOCK_SIZE + offset] == (salt, prefix)

    @invariant()
    def counts_match_the_tables(self) -> None:
        held = [block for sequence in self.sequences for block in sequence.table.blocks.tolist()]
        counts = np.bincount(np.array(held, dtype=int), minlength=self.pool.num_blocks)
        assert counts.tolist() == [self.pool.references(b) for b in range(self.pool.num_blocks)]
        assert self.pool.num_free == int(np.sum(counts == 0))
        assert self.pool.num_kept == sum(counts[block] == 0 for block in self.cache._digests)
        assert len(self.cache) == len(self.cache._digests)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for sequence in self.sequences:
                sequence.table.free()
            assert self.pool.num_free == self.pool.num_blocks


TestPrefix = PrefixMachine.TestCase
TestPrefix.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def cached(pool: BlockPool, cache: PrefixCache, tokens: list[int]) -> BlockTable:
    """A table of ``tokens`` whose full blocks are all cached."""
    table = BlockTable(pool)
    table.append(len(tokens))
    for digest, block in zip(chained(None, tokens).hashes, table.blocks.tolist(), strict=False):
        cache.insert(digest, block)
    return table


def test_a_digest_is_of_every_token_before_it() -> None:
    tokens = list(range(64))
    hashes = chained(None, tokens).hashes
    for at in range(64):
        changed = chained(None, [*tokens[:at], -1, *tokens[at + 1 :]]).hashes
        same = [a == b for a, b in zip(hashes, changed, strict=True)]
        assert same == [block < at // BLOCK_SIZE for block in range(4)]


def test_a_digest_is_the_hash_that_it_is_said_to_be() -> None:
    first, second = chained(None, list(range(32))).hashes
    numbers = np.arange(16, 32, dtype="<i4").tobytes()
    assert second == blake2b(first + numbers, digest_size=16).digest()


@given(salt=SALTS, parts=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), max_size=6))
def test_a_chain_does_not_depend_on_how_it_was_given(salt: str | None, parts: list[list[int]]) -> None:
    whole = chained(salt, [token for part in parts for token in part])
    chain = HashChain(salt)
    for number, part in enumerate(parts):
        other = chain.fork()
        chain.extend(np.array(part, dtype=np.int32) if number % 2 else part)
        assert other.length == chain.length - len(part)
    assert (chain.hashes, chain.length) == (whole.hashes, whole.length)
    assert len(chain.hashes) == chain.length // BLOCK_SIZE


def test_a_fork_goes_its_own_way() -> None:
    chain = chained(None, list(range(20)))
    fork = chain.fork()
    fork.extend([1] * 12)
    assert (chain.length, len(chain.hashes)) == (20, 1)
    chain.extend([2] * 12)
    assert chain.hashes[0] == fork.hashes[0]
    assert chain.hashes[1] != fork.hashes[1]


def test_an_array_that_could_be_cut_off_is_refused() -> None:
    with pytest.raises(TypeError):
        HashChain().extend(np.array([2**32], dtype=np.int64))


def test_no_two_salts_share_a_block() -> None:
    salts = [None, "", " ", "=", "a", "A", "é", "e\u0301", "\udc80", "a" * 200]
    tokens = list(range(48))
    digests = [chained(salt, tokens).hashes for salt in salts]
    for (i, one), (j, other) in product(enumerate(digests), repeat=2):
        assert bool(set(one) & set(other)) is (i == j)
    pool = BlockPool(3)
    cache = PrefixCache(pool)
    cached(pool, cache, tokens)
    assert [cache.match(hashes) for hashes in digests] == [3] + [0] * (len(salts) - 1)


def test_a_root_outlives_its_leaf() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool)
    tokens = list(range(64))
    hashes = chained(None, tokens).hashes
    cached(pool, cache, tokens).free()
    for left in (3, 2, 1, 0):
        assert pool.take(1) is not None
        assert cache.match(hashes) == left


def test_what_was_used_last_is_evicted_last() -> None:
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    one, two = [1] * 16, [2] * 16
    cached(pool, cache, one).free()
    cached(pool, cache, two).free()
    for block in cache.take(chained(None, one).hashes):
        pool.release(block)
    pool.take(1)
    assert cache.match(chained(None, one).hashes) == 1
    assert cache.match(chained(None, two).hashes) == 0


def test_a_cached_block_is_not_written_over() -> None:
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    tokens = list(range(16))
    hashes = chained(None, tokens).hashes
    table = cached(pool, cache, tokens)
    other = table.fork()
    table.truncate(5)
    assert table.next_slot() is None
    appended = table.append(1)
    assert appended is not None
    assert len(appended.copies) == 5
    assert cache.match(hashes) == 1
    other.truncate(5)
    assert other.next_slot() is None
    appended = other.append(1)  # held by nobody else, in a full pool: written in place, and found no more
    assert appended is not None
    assert len(appended.copies) == 0
    assert cache.match(hashes) == 0


def test_a_digest_has_one_block_and_a_block_one_digest() -> None:
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    first, second = (BlockTable(pool) for _ in range(2))
    first.append(16)
    second.append(16)
    cache.insert(b"one", int(first.blocks[0]))
    cache.insert(b"one", int(second.blocks[0]))
    assert cache.take([b"one"]) == first.blocks.tolist()
    with pytest.raises(ValueError, match="another digest"):
        cache.insert(b"two", int(first.blocks[0]))
    second.free()
    with pytest.raises(ValueError, match="free"):
        cache.insert(b"two", 1)
    assert (len(cache), pool.num_kept) == (1, 0)


def test_a_digest_is_pending_for_one_owner_until_it_is_there_or_given_up() -> None:
    pool = BlockPool(1)
    cache = PrefixCache(pool)
    one: list[int] = []
    two: list[int] = []
    cache.begin([b"a", b"b"], one)
    cache.begin([b"b", b"c"], two)
    table = BlockTable(pool)
    table.append(16)
    cache.insert(b"a", int(table.blocks[0]))
    assert [cache.owner(d) is not None for d in (b"a", b"b", b"c")] == [False, True, True]
    cache.begin([b"a"], two)
    assert cache.owner(b"a") is None
    cache.end(two)
    assert [cache.owner(d) is not None for d in (b"b", b"c")] == [True, False]
    cache.end(one)
    cache.end(one)
    assert cache.owner(b"b") is None
