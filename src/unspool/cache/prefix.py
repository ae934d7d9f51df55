"""Full blocks that are found again by the tokens they hold and all the tokens before them."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from unspool.cache.pool import BLOCK_SIZE, BlockPool

DIGEST_SIZE = 16
"""Bytes of a block's digest."""

_BLOCK_BYTES = 4 * BLOCK_SIZE


class HashChain:
    """The digests of a sequence's full blocks, each over everything up to its end.

    A block's digest is BLAKE2b of its parent's digest and its 16 token ids (int32, little-endian); the
    first block's parent is a digest of ``salt``. Keys and values depend on all the tokens before, and
    so does the digest: equal digests mean equal sequences from the first token on.

    The hash is a cryptographic one because a collision would hand one caller the keys and values of
    another's text. Python's ``hash`` is not enough: it has 64 bits, and anyone can find sequences that
    it maps to one number. With 128 bits none meet by chance, and finding two takes some 2^64 attempts.

    The salt keeps callers apart: who can time a request can tell whether its beginning was cached, and
    so guess, block by block, what others asked. Requests of different salts share nothing. No salt
    (``None``) and the empty one are different salts.
    """

    __slots__ = ("_parent", "_tail", "hashes", "length")

    def __init__(self, salt: str | None = None) -> None:
        self.hashes: list[bytes] = []
        """One digest of 16 bytes for each full block."""
        self.length = 0
        """Tokens taken in, those after the last full block among them."""
        self._parent = _root(salt)
        self._tail = b""  # the tokens after the last full block

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Take in the tokens that come next. Raises ``TypeError`` for an array of another type."""
        self.length += len(tokens)
        data = self._tail + _as_bytes(tokens)
        full = len(data) - len(data) % _BLOCK_BYTES
        for start in range(0, full, _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            self._parent = blake2b(self._parent + block, digest_size=DIGEST_SIZE).digest()
            self.hashes.append(self._parent)
        self._tail = data[full:]

    def fork(self) -> HashChain:
        """A second chain of the same tokens."""
        child = HashChain.__new__(HashChain)
        child.hashes, child.length = self.hashes.copy(), self.length
        child._parent, child._tail = self._parent, self._tail
        return child


def _root(salt: str | None) -> bytes:
    """The parent of a first block: no block's digest, as blocks are hashed under another name."""
    data = b"" if salt is None else b"=" + salt.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=DIGEST_SIZE, person=b"salt").digest()


def _as_bytes(tokens: Sequence[int] | npt.NDArray[np.int32]) -> bytes:
    """Token ids as little-endian int32."""
    if isinstance(tokens, np.ndarray):
        return tokens.astype("<i4", casting="equiv", copy=False).tobytes()
    return struct.pack(f"<{len(tokens)}i", *tokens)


class PrefixCache:
    """Which blocks of a pool hold which tokens: every full block that was inserted, by its digest.

    A block stays as long as its mark in the pool does: it can be matched while tables hold it and
    after, until the pool hands it out to another use. Contents are the caller's: what is inserted must
    be computed before anyone who takes it reads it.

    A digest is pending while a running prompt is about to compute its block, so that a second request
    with the same beginning can wait for it instead of computing it again.
    """

    __slots__ = ("_begun", "_blocks", "_digests", "_pending", "_pool")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        self._pending: dict[bytes, object] = {}
        self._begun: dict[int, set[bytes]] = {}  # by the id of an owner, which _pending keeps alive
        pool.on_evict = self._evicted

    def __len__(self) -> int:
        """How many blocks can be matched."""
        return len(self._blocks)

    def match(self, hashes: Iterable[bytes]) -> int:
        """How many leading blocks of a chain are cached; touches nothing."""
        count = 0
        for digest in hashes:
            if digest not in self._blocks:
                break
            count += 1
        return count

    def held(self, hashes: Iterable[bytes], but: Container[int] = ()) -> int:
        """How many of these cached blocks tables hold, blocks in ``but`` aside."""
        blocks = (self._blocks[digest] for digest in hashes)
        return sum(self._pool.references(block) > 0 and block not in but for block in blocks)

    def take(self, hashes: Sequence[bytes], count: int | None = None) -> list[int]:
        """The blocks of a chain's longest cached prefix, of at most ``count``, to be adopted by a table.

        One reference is added to each. Kept blocks that nobody held were among the pool's free ones
        until now.
        """
        taken: list[int] = []
        for digest in hashes[:count]:
            block = self._blocks.get(digest)
            if block is None:
                break
            self._pool.share(block)
            taken.append(block)
        return taken

    def insert(self, digest: bytes, block: int) -> None:
        """Let a held, full block be found by ``digest``, which is then pending no more.

        The first block of a digest stays. Raises ``ValueError`` for a free block, and for one that is
        found by another digest.
        """
        if digest not in self._blocks:
            if block in self._digests:
                raise ValueError(f"block {block} is already cached under another digest")
            self._pool.keep(block)
            self._blocks[digest] = block
            self._digests[block] = digest
        if digest in self._pending:
            self._settle(digest)

    def begin(self, digests: Iterable[bytes], owner: object) -> None:
        """Mark digests as about to be computed by ``owner``; skips those pending or cached already."""
        for digest in digests:
            if digest not in self._pending and digest not in self._blocks:
                self._pending[digest] = owner
                self._begun.setdefault(id(owner), set()).add(digest)

    def end(self, owner: object) -> None:
        """Whatever ``owner`` began is pending no more: it is done, or will not be."""
        for digest in self._begun.pop(id(owner), ()):
            del self._pending[digest]

    def owner(self, digest: bytes) -> object | None:
        """Who is about to compute the block of ``digest``; ``None`` where nobody is."""
        return self._pending.get(digest)

    def _settle(self, digest: bytes) -> None:
        """Take one digest out of the pending ones, and an owner out with its last."""
        owner = id(self._pending.pop(digest))
        self._begun[owner].remove(digest)
        if not self._begun[owner]:
            del self._begun[owner]

    def _evicted(self, block: int) -> None:
        """The pool's word that a block holds its tokens no more."""
        digest = self._digests.pop(block, None)
        if digest is not None:
            del self._blocks[digest]
