"""How full the cache is, and how much of it holds nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from unspool.cache.pool import BLOCK_SIZE, BlockPool
from unspool.cache.table import BlockTable


@dataclass(frozen=True)
class CacheUse:
    """A pool's blocks at one moment."""

    blocks: int
    """All of them."""
    held: int
    """Those that tables hold."""
    kept: int
    """Those that no table holds and whose contents can be found again."""
    filled: int
    """Slots of held blocks that hold a token; a shared block counts once."""

    @property
    def allocated_slots(self) -> int:
        """Token slots of the held blocks."""
        return self.held * BLOCK_SIZE

    @property
    def waste(self) -> float:
        """The share of the allocated slots that holds no token, from 0 to 1; 0 where none is allocated."""
        return 1 - self.filled / self.allocated_slots if self.held else 0.0


def measure(pool: BlockPool, tables: Iterable[BlockTable]) -> CacheUse:
    """How ``tables``, which are all that hold blocks of ``pool``, use it.

    Of a block that several of them hold, as many slots are filled as the one that fills most of it fills.
    """
    filled = np.zeros(pool.num_blocks, dtype=np.int64)
    for table in tables:
        if table.length:
            filled[table.blocks[:-1]] = BLOCK_SIZE
            last = table.blocks[-1]
            filled[last] = max(filled[last], table.length - (table.num_blocks - 1) * BLOCK_SIZE)
    return CacheUse(
        blocks=pool.num_blocks,
        held=pool.num_blocks - pool.num_free,
        kept=pool.num_kept,
        filled=int(filled.sum()),
    )
