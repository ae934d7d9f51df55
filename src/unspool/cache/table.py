"""The block table of one branch: where each position of its sequence lies in the pool."""

from __future__ import annotations

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
    write into it while another still holds it (copy on write).
    """

    __slots__ = ("_blocks", "length", "num_blocks", "pool")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.length = 0
        self.num_blocks = 0
        self._blocks: Int32Array = np.empty(4, dtype=np.int32)

    @property
    def blocks(self) -> Int32Array:
        """[num_blocks] physical block of each logical one: a view, valid until the next change."""
        return self._blocks[: self.num_blocks]

    def append(self, count: int) -> Appended | None:
        """Add ``count`` positions at the end.

        Returns ``None``, and changes nothing, if the pool has too few free blocks.
        """
        offset = self.length % BLOCK_SIZE
        if offset > 0 and count == 1:  # the usual step: room in a block of our own
            last = int(self._blocks[self.num_blocks - 1])
            if self.pool.references(last) == 1:
                self.length += 1
                return Appended(np.array([last * BLOCK_SIZE + offset], dtype=np.int32), NO_COPIES)
        shared = count > 0 and offset > 0 and self.pool.references(int(self.blocks[-1])) > 1
        missing = blocks_for_tokens(self.length + count) - self.num_blocks
        taken = self.pool.take(missing + shared)
        if taken is None:
            return None
        copies = self._replace_last(taken.pop(), offset) if shared else NO_COPIES
        self._extend(taken)
        at = np.arange(self.length, self.length + count, dtype=np.int32)
        self.length += count
        return Appended(self._blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE, copies)

    def fork(self) -> BlockTable:
        """A second table of the same positions that shares every block; takes none."""
        child = BlockTable(self.pool)
        child.length, child.num_blocks = self.length, self.num_blocks
        child._blocks = self._blocks.copy()
        for block in self.blocks.tolist():
            self.pool.share(block)
        return child

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions. Raises ``ValueError`` if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a table of {self.length} positions to {length}")
        kept = blocks_for_tokens(length)
        for block in self.blocks[kept:].tolist():
            self.pool.release(block)
        self.length, self.num_blocks = length, kept

    def free(self) -> None:
        """Give everything back; a freed table is an empty one, and may be freed again."""
        self.truncate(0)

    def _replace_last(self, block: int, used: int) -> Int32Array:
        """Put a block of our own in place of the shared last one; [used, 2] slots to copy."""
        shared = int(self.blocks[-1])
        self._blocks[self.num_blocks - 1] = block
        self.pool.release(shared)
        offsets = np.arange(used, dtype=np.int32)
        return np.stack([shared * BLOCK_SIZE + offsets, block * BLOCK_SIZE + offsets], axis=1)

    def _extend(self, taken: list[int]) -> None:
        """Write newly taken blocks at the end, doubling the array when it is full."""
        count = self.num_blocks + len(taken)
        if count > len(self._blocks):
            grown = np.empty(max(count, 2 * len(self._blocks)), dtype=np.int32)
            grown[: self.num_blocks] = self.blocks
            self._blocks = grown
        self._blocks[self.num_blocks : count] = taken
        self.num_blocks = count
