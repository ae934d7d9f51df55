"""What of a stream is certain while its branches, or the choice among them, may still change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unspool.engine.branch import Branch
from unspool.results import Chunk


class Agreement:
    """How much of the result has been shown: what all branches of a request have in common.

    Every branch that is still there goes on from what was shown, so that it is never taken back.
    """

    def __init__(self) -> None:
        self._shown = self._shown_tokens = 0

    def take_chunk(self, branches: Sequence[Branch]) -> Chunk | None:
        """What became common to all branches since the last chunk."""
        if not branches:
            return None
        count = common_length(branches)
        safe, upto = branches[0].certain
        for branch in branches:
            characters, tokens = branch.certain
            safe, upto = min(safe, characters), min(upto, tokens)
        upto = max(self._shown_tokens, min(upto, count))
        ends = branches[0].ends
        safe = min(safe, ends[upto - 1]) if upto > 0 else 0
        if safe <= self._shown and upto == self._shown_tokens:
            return None
        chunk = self._show(branches[0], max(safe, self._shown), upto, 0)
        return replace(
            chunk, finish_reason=None, stop_reason=None
        )  # which are the branch's, not the result's

    def last_chunks(self, ranked: Sequence[Branch]) -> list[Chunk]:
        """What is left of the best branch, and the other results whole, each with its place among them."""
        best, *others = ranked
        chunks = [self._show(best, best.cut, best.kept, 0)]
        return chunks + [other.show(other.cut, other.kept, at) for at, other in enumerate(others, 1)]

    def _show(self, branch: Branch, safe: int, upto: int, index: int) -> Chunk:
        branch.shown, branch.shown_tokens = self._shown, self._shown_tokens
        chunk = branch.show(safe, upto, index)
        branch.shown = branch.shown_tokens = 0
        self._shown, self._shown_tokens = safe, upto
        return chunk


def common_length(branches: Sequence[Branch]) -> int:
    """How many first final tokens all branches share."""
    shortest = min(branches, key=lambda branch: branch.final)
    count = shortest.final
    for branch in branches:
        while branch.token_ids[:count] != shortest.token_ids[:count]:
            count -= 1
    return count
