"""A backend and the paged cache that it computes into."""

from __future__ import annotations

import numpy as np

from unspool.backend.base import Backend, Int32Array
from unspool.cache import BlockPool, PrefixCache


class CachedBackend:
    """A backend with the blocks of its cache, all of which it allocates.

    sharing: whether blocks are kept for other requests that begin alike.
    """

    def __init__(self, name: str, backend: Backend, num_blocks: int, *, sharing: bool = True) -> None:
        backend.allocate(num_blocks)
        self.name = name
        self.backend = backend
        self.sharing = sharing
        self.pool = BlockPool(num_blocks)
        self.prefixes = PrefixCache(self.pool)
        self.copies: list[Int32Array] = []
        """Slot pairs to copy before the next step is computed: copies on write."""

    def copy(self) -> None:
        """Copy what was to be copied before a step."""
        if self.copies:
            self.backend.copy_slots(np.concatenate(self.copies))
            self.copies = []  # not before: where the copying failed, what is tried again needs them

    def reset(self) -> None:
        """Forget everything that is cached, whoever holds it: tables of the old pool are to be thrown away.

        The pool is made anew, as an interrupt may have left the old one in the middle of anything.
        """
        self.copies = []
        self.pool = BlockPool(self.pool.num_blocks)
        self.prefixes = PrefixCache(self.pool)
