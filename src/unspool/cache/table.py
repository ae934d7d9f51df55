"""The block table of one branch: where each position of its sequence lies in the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unspool.cache.pool import BLOCK_SIZE, BlockPool, blocks_for_tokens

Int32Array = npt.NDArray[np.int32]

NO_COPIES: Int32Array = np.empty((0, 2), dtype=np.int32)
NO_COPIES.flags.writeable = False


class Appended(NamedTuple):
    """What ``BlockTable.append`` gave."""

    slots: Int32Array
    """[n] physical slot of each new position, in order."""
    copies: Int32Array
    """[c, 2] slot pairs (from, to) to copy before anything is written to ``slots``; usually none."""


class BlockTable:
    """Logical to physical map of one branch: ``length`` positions in blocks of 16.

    A block may be shared with other tables (``fork``). It is copied when this table is about to
    write into it while another still holds it (copy on write). A kept block that only this table
    holds is forgotten instead, as its contents change.
    """

    __slots__ = ("_blocks", "_holders", "_last", "changes", "length", "num_blocks", "pool")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.length = 0
        self.num_blocks = 0
        self.changes = 0
        """Raised with every change of ``blocks``, so that a copy of them can be told to be stale."""
        self._blocks: Int32Array = np.empty(4, dtype=np.int32)
        self._holders = pool.holders
        self._last = -1  # blocks[-1] as Python's own number, for next_slot

    @property
    def blocks(self) -> Int32Array:
        """[num_blocks] physical block of each logical one: a view, valid until the next change."""
        return self._blocks[: self.num_blocks]

    def adopt(self, blocks: Sequence[int]) -> None:
        """Begin with full blocks, of which one reference each is already this table's own.

        Raises ``ValueError`` if the table is not empty.
        """
        if self.length:
            raise ValueError(f"cannot adopt blocks into a table of {self.length} positions")
        self._extend(blocks)
        self.length = len(blocks) * BLOCK_SIZE

    def next_slot(self) -> int | None:
        """Add one position and return its slot, where that needs no block of the pool.

        Returns ``None``, and changes nothing, where the last block is full, or another holds it too:
        then ``append(1)`` is to be used.
        """
        offset = self.length % BLOCK_SIZE
        if offset == 0 or self._holders[self._last] != 1:
            return None
        self.length += 1
        return self._last * BLOCK_SIZE + offset

    def append(self, count: int) -> Appended | None:
        """Add ``count`` positions at the end.

        Returns ``None``, and changes nothing, if the pool has too few free blocks.
        """
        if count == 1:  # the usual step: room in a block of our own
            slot = self.next_slot()
            if slot is not None:
                return Appended(np.array([slot], dtype=np.int32), NO_COPIES)
        offset = self.length % BLOCK_SIZE
        written = count > 0 and offset > 0
        shared = written and self.pool.references(self._last) > 1
        missing = blocks_for_tokens(self.length + count) - self.num_blocks
        taken = self.pool.take(missing + shared)
        if taken is None:
            return None
        copies = NO_COPIES
        if shared:
            copies = self._replace_last(taken.pop(), offset)
        elif written:
            self.pool.forget(self._last)
        self._extend(taken)
        at = np.arange(self.length, self.length + count, dtype=np.int32)
        self.length += count
        return Appended(self._blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE, copies)

    def fork(self) -> BlockTable:
        """A second table of the same positions that shares every block; takes none."""
        child = BlockTable(self.pool)
        child.length, child.num_blocks = self.length, self.num_blocks
        child._blocks, child._last = self._blocks.copy(), self._last
        for block in self.blocks.tolist():
            self.pool.share(block)
        return child

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions. Raises ``ValueError`` if there are fewer.

        Blocks are released from the last to the first: kept ones are then handed out in that order,
        and a prefix outlives what continued it.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a table of {self.length} positions to {length}")
        left = blocks_for_tokens(length)
        self.length = length
        if left == self.num_blocks:
            return
        for block in self._blocks[left : self.num_blocks][::-1].tolist():
            self.pool.release(block)
        self.num_blocks = left
        self._last = int(self._blocks[left - 1]) if left else -1
        self.changes += 1

    def free(self) -> None:
        """Give everything back, the last block first; a freed table is empty, and may be freed again."""
        self.truncate(0)

    def _replace_last(self, block: int, used: int) -> Int32Array:
        """Put a block of our own in place of the shared last one; [used, 2] slots to copy."""
        shared = self._last
        self._blocks[self.num_blocks - 1] = self._last = block
        self.changes += 1
        self.pool.release(shared)
        offsets = np.arange(used, dtype=np.int32)
        return np.stack([shared * BLOCK_SIZE + offsets, block * BLOCK_SIZE + offsets], axis=1)

    def _extend(self, blocks: Sequence[int]) -> None:
        """Write blocks at the end, doubling the array when it is full."""
        if not blocks:
            return
        count = self.num_blocks + len(blocks)
        if count > len(self._blocks):
            grown = np.empty(max(count, 2 * len(self._blocks)), dtype=np.int32)
            grown[: self.num_blocks] = self.blocks
            self._blocks = grown
        self._blocks[self.num_blocks : count] = blocks
        self._last = blocks[-1]
        self.num_blocks = count
        self.changes += 1
