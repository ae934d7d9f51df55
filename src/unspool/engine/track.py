"""One of the ways that a branch's tokens run through a model, and what of them is cached there."""

from __future__ import annotations

from collections.abc import Sequence

from unspool.cache import BLOCK_SIZE, BlockTable, HashChain
from unspool.engine.cached_backend import CachedBackend


class Track:
    """A backend, a prefix, and the block table of the prefix and a branch's tokens after it.

    ``run``, ``start`` and ``slots`` are its part in the step that is planned: the tokens to compute, the
    position of the first, and where their keys and values go. ``row`` is the first of its rows there.
    """

    __slots__ = (
        "_chain",
        "_salt",
        "_shared",
        "exits",
        "home",
        "prefix",
        "row",
        "run",
        "slots",
        "start",
        "table",
    )

    def __init__(
        self, home: CachedBackend, prefix: list[int], exits: tuple[int, ...] | None, salt: str | None
    ) -> None:
        self.home = home
        self.prefix = prefix
        self.exits = exits
        self.table = BlockTable(home.pool)
        self.run: list[int] = []
        self.slots: list[int] = []
        self.start = self.row = 0
        self._salt = salt
        self._chain: HashChain | None = None
        self._shared = 0

    @property
    def rows(self) -> int:
        """How many rows it gives for one token."""
        return 1 if self.exits is None else len(self.exits)

    def pending(self, generated: int) -> int:
        """How many tokens of the prefix and of ``generated`` ones after it are not computed yet."""
        return len(self.prefix) + generated - self.table.length

    def tokens(self, first: int, end: int, generated: Sequence[int]) -> list[int]:
        """Tokens ``first..end-1`` of prefix and generated ones."""
        offset = len(self.prefix)
        if first >= offset:
            return list(generated[first - offset : end - offset])
        return [*self.prefix[first:end], *generated[: max(0, end - offset)]]

    def digests(self, generated: Sequence[int]) -> list[bytes]:
        """A digest for each full block of prefix and final tokens."""
        if self._chain is None:
            self._chain = HashChain(self._salt)
        end = len(self.prefix) + len(generated)
        if end // BLOCK_SIZE > len(self._chain.hashes):
            self._chain.extend(self.tokens(self._chain.length, end, generated))
        return self._chain.hashes

    def find(self, generated: Sequence[int], limit: int) -> list[bytes]:
        """Digests of the longest cached beginning of at most ``limit`` tokens."""
        if not self.home.sharing:
            return []
        digests = self.digests(generated)[: limit // BLOCK_SIZE]
        return digests[: self.home.prefixes.match(digests)]

    def adopt(self, digests: list[bytes]) -> None:
        """Begin with cached blocks, which ``find`` has found."""
        self.table.adopt(self.home.prefixes.take(digests))
        self._shared = len(digests)

    def share(self, generated: Sequence[int]) -> None:
        """Let other requests find the full blocks whose tokens are computed and final."""
        final = min(self.table.length, len(self.prefix) + len(generated)) // BLOCK_SIZE
        if final <= self._shared or not self.home.sharing:
            return
        digests, blocks = self.digests(generated), self.table.blocks
        for i in range(self._shared, final):
            self.home.prefixes.insert(digests[i], int(blocks[i]))
        self._shared = final

    def fork(self) -> Track:
        """A track of the same tokens that shares every block."""
        twin = Track(self.home, self.prefix, self.exits, self._salt)
        twin.table = self.table.fork()
        twin._chain = None if self._chain is None else self._chain.fork()
        twin._shared, twin.start = self._shared, self.start
        return twin

    def follow(self, other: Track, length: int) -> None:
        """Begin as another track of the same prefix did, with its first ``length`` positions."""
        self.table = other.table.fork()
        self.table.truncate(length)
        self._shared = min(other._shared, length // BLOCK_SIZE)

    def truncate(self, length: int) -> None:
        """Let go of what is cached after the first ``length`` positions."""
        if self.table.length > length:
            self.table.truncate(length)
        self._shared = min(self._shared, length // BLOCK_SIZE)
        self._chain = None  # whose tokens may be others from there on

    def free(self) -> None:
        """Give the blocks back."""
        self.table.free()
        self._forget()

    def forget(self) -> None:
        """Begin again in a pool that was reset, trusting nothing: an interrupt may have come anywhere."""
        self.table = BlockTable(self.home.pool)
        self._chain = None
        self._forget()

    def _forget(self) -> None:
        self._shared = 0
        self.run, self.slots = [], []
