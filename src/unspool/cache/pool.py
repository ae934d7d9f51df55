"""The pool of cache blocks: a free list and reference counts, nothing else."""

from __future__ import annotations

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
    """Physical blocks ``0..num_blocks-1``, each free or held by one or more block tables.

    A pool that is out of blocks answers ``None``; it never raises and never grows. The most
    recently freed block is taken first, while it is still in the processor's caches.

    Raises ``ParameterError`` for fewer than one block.
    """

    __slots__ = ("_free", "_references", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ParameterError(f"a cache needs at least one block of {BLOCK_SIZE} tokens, not {num_blocks}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_tokens(self) -> int:
        """Token slots of the whole pool, held or free."""
        return self.num_blocks * BLOCK_SIZE

    def references(self, block: int) -> int:
        """How many tables hold ``block``; 0 if it is free."""
        return self._references[block]

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` free blocks, one reference each; ``None``, and nothing taken, if there are fewer."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a held block. Raises ``ValueError`` for a free one."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free and cannot be shared")
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block. Raises ``ValueError`` for a free one."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free and cannot be released")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)
