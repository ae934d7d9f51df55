"""Where the end of a branch's tokens has been before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unspool.sampling.rules.rule import Int32Array
from unspool.sampling.rules.scope import Scope, in_scope


class SuffixMatches:
    """For each place in scope, how long a suffix of the tokens up to it is also the suffix of all.

    The prompt's come from one pass of the Z algorithm. They are kept up to date by L[j + 1] = L[j] + 1 where
    token j + 1 equals the new one, and 0 elsewhere: one pass over what is in scope for each token.
    """

    __slots__ = ("_lengths", "_tokens", "count", "scope")

    def __init__(self, scope: Scope, prompt: Sequence[int]) -> None:
        tokens = list(in_scope(scope, prompt))
        self.scope = scope
        self.count = len(tokens)
        self._tokens: Int32Array = np.empty(len(tokens) + 64, np.int32)
        self._lengths: Int32Array = np.empty(len(tokens) + 64, np.int32)
        self._tokens[: self.count] = tokens
        self._lengths[: self.count] = common_prefixes(tokens[::-1])[::-1]

    def push(self, token: int) -> None:
        """Go on with a token."""
        n = self.count
        if n == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._lengths = np.concatenate([self._lengths, np.empty_like(self._lengths)])
        tokens, lengths = self._tokens, self._lengths
        if n:
            # The last token's own place is no earlier one: its length would be that of everything.
            first = max(1, self.first)
            lengths[first:n] = (lengths[first - 1 : n - 1] + 1) * (tokens[first:n] == token)
            lengths[0] = tokens[0] == token
        tokens[n] = token
        lengths[n] = 0
        self.count = n + 1

    @property
    def first(self) -> int:
        """The first place in scope."""
        return max(0, self.count - self.scope) if isinstance(self.scope, int) else 0

    @property
    def tokens(self) -> Int32Array:
        """[m + 1] the tokens in scope."""
        return self._tokens[self.first : self.count]

    @property
    def followers(self) -> Int32Array:
        """[m] the token after each earlier place in scope, in order."""
        return self._tokens[self.first + 1 : self.count]

    @property
    def lengths(self) -> Int32Array:
        """[m] how long the match is that ends at each earlier place, within the scope."""
        first, last = self.first, max(self.first, self.count - 1)
        return np.minimum(self._lengths[first:last], np.arange(1, last - first + 1, dtype=np.int32))

    def fork(self) -> SuffixMatches:
        """Matches of the same tokens that go their own way."""
        twin = SuffixMatches(self.scope, ())
        twin.count = self.count
        twin._tokens, twin._lengths = self._tokens.copy(), self._lengths.copy()
        return twin


def common_prefixes(tokens: Sequence[int]) -> list[int]:
    """[n] how long a prefix of ``tokens`` starts at each place, 0 for the first place itself.

    The Z algorithm (Gusfield, "Algorithms on strings, trees, and sequences", 1997): what lies within the
    farthest-reaching prefix found so far is known already.
    """
    n = len(tokens)
    lengths = [0] * n
    start = end = 0
    for i in range(1, n):
        length = min(lengths[i - start], end - i) if i < end else 0
        while i + length < n and tokens[length] == tokens[i + length]:
            length += 1
        lengths[i] = length
        if i + length > end:
            start, end = i, i + length
    return lengths
