"""The pool of cache blocks: a free list, reference counts and marks of what to keep, nothing else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from unspool.errors import ParameterError

BLOCK_SIZE = 16
"""Token slots in a block."""


def blocks_for_tokens(tokens: int) -> int:
    """Blocks that hold ``tokens`` slots: ceil(tokens / 16)."""
    return -(-tokens // BLOCK_SIZE)


def blocks_for_memory(memory: int, bytes_per_token: int) -> int:
    """Whole blocks that fit in ``memory`` bytes, when a token's keys and values take ``bytes_per_token``."""
    return memory // (bytes_per_token * BLOCK_SIZE)


class BlockPool:
    """Physical blocks ``0..num_blocks-1``, each free, held by one or more block tables, or kept.

    A pool that is out of blocks answers ``None``; it never raises and never grows. The most
    recently freed block is taken first, while it is still in the processor's caches.

    A block marked with ``keep`` is worth reading again: when its last reference is released its
    contents stay, and ``share`` revives it, until nothing else is left to take. Then the block that
    was released longest ago is handed out first. Every operation takes constant time per block.

    Raises ``ParameterError`` for fewer than one block.
    """

    __slots__ = ("_free", "_idle", "_kept", "holders", "num_blocks", "on_evict")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ParameterError(f"a cache needs at least one block of {BLOCK_SIZE} tokens, not {num_blocks}")
        self.num_blocks = num_blocks
        self.holders = [0] * num_blocks
        """[num_blocks] the references to each block, and one more for a kept mark; only to be read.

        With the mark among the holders, one comparison tells whether a table may write into its block:
        it may where it is the only holder.
        """
        self.on_evict: Callable[[int], None] | None = None
        """Called with a kept block whose mark is gone: handed out to another use, or to be written over."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept and without references, oldest first

    @property
    def num_free(self) -> int:
        """Blocks that ``take`` could hand out: those without references."""
        return len(self._free) + len(self._idle)

    @property
    def num_kept(self) -> int:
        """Those of the ``num_free`` blocks whose contents are kept until nothing else is left."""
        return len(self._idle)

    @property
    def num_tokens(self) -> int:
        """Token slots of the whole pool, held or free."""
        return self.num_blocks * BLOCK_SIZE

    def references(self, block: int) -> int:
        """How many tables hold ``block``; 0 if none does, kept or not."""
        return self.holders[block] - (block in self._kept)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, one reference each; ``None``, and nothing taken, if there are fewer.

        Blocks that are not kept go first, then kept ones, the longest released first.
        """
        free = self._free
        if count > len(free) + len(self._idle):
            return None
        for _ in range(count - len(free)):
            self.forget(next(iter(self._idle)))
        taken = [free.pop() for _ in range(count)]
        for block in taken:
            self.holders[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a held or kept block. Raises ``ValueError`` for a free one."""
        if self.holders[block] == 0:
            raise ValueError(f"block {block} is free and cannot be shared")
        self._idle.pop(block, None)
        self.holders[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees a block that is not kept. Raises ``ValueError`` at none."""
        left = self.holders[block] - 1
        if left < 0 or block in self._idle:
            raise ValueError(f"block {block} is free and cannot be released")
        self.holders[block] = left
        if left == 0:
            self._free.append(block)
        elif left == 1 and block in self._kept:
            self._idle[block] = None

    def keep(self, block: int) -> None:
        """Mark a held block as worth keeping; a second mark is none. Raises ``ValueError`` for a free one."""
        if self.holders[block] == 0:
            raise ValueError(f"block {block} is free and cannot be kept")
        if block not in self._kept:
            self._kept.add(block)
            self.holders[block] += 1

    def forget(self, block: int) -> None:
        """Drop a block's kept mark, if it has one; without references it is free again."""
        if block not in self._kept:
            return
        self._kept.remove(block)
        self.holders[block] -= 1
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)
        if self.on_evict is not None:
            self.on_evict(block)
