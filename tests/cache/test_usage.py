"""How full the cache is: shared blocks once, kept ones apart."""

import pytest

from unspool.cache import BlockPool, BlockTable, HashChain, PrefixCache, measure


def test_nothing_held_wastes_nothing() -> None:
    use = measure(BlockPool(3), [])
    assert (use.blocks, use.held, use.kept, use.filled, use.waste) == (3, 0, 0, 0, 0.0)


def test_a_shared_block_is_as_full_as_the_table_that_fills_most() -> None:
    pool = BlockPool(6)
    long = BlockTable(pool)
    long.append(30)
    short = long.fork()
    short.truncate(20)
    for tables in ([long, short], [short, long]):
        use = measure(pool, tables)
        assert (use.held, use.allocated_slots, use.filled) == (2, 32, 30)
        assert use.waste == pytest.approx(2 / 32)
    short.append(1)
    use = measure(pool, [long, short])
    assert (use.held, use.filled) == (3, 16 + 14 + 5)


def test_a_kept_block_is_not_held() -> None:
    pool = BlockPool(2)
    cache = PrefixCache(pool)
    table, chain = BlockTable(pool), HashChain()
    table.append(17)
    chain.extend(range(17))
    cache.insert(chain.hashes[0], int(table.blocks[0]))
    assert measure(pool, [table]).kept == 0
    table.free()
    use = measure(pool, [table])
    assert (use.held, use.kept, use.filled) == (0, 1, 0)
