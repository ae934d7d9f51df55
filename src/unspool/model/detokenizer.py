"""Token ids to text as they come, never half a character."""

from __future__ import annotations

import codecs
from bisect import bisect_left

from unspool.model.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns one branch's tokens to text one by one.

    texts: those of tokens that are whole characters by themselves, as they come up; detokenizers of one
        tokenizer and one ``skip_special`` may share it.

    The pieces that ``push`` and ``flush`` return, joined, are ``bytes.decode("utf-8", "replace")`` of the
    tokens' bytes: a character is given when its last byte comes, and bytes that are no UTF-8 become U+FFFD.
    """

    length: int
    """Characters given so far."""
    starts: list[int]
    """For each pushed token, the character of the text at which its own text begins. A token that begins
    within a character begins where that character does; one without text begins at the end of the text."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, texts: dict[int, str] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._texts = {} if texts is None else texts
        self._pending = b""
        self.length = 0
        self.starts = []

    @property
    def incomplete(self) -> bool:
        """Whether part of a character is left over."""
        return bool(self._pending)

    def push(self, token: int) -> str:
        """Take the next token; return the text that is complete now and was not before, perhaps none."""
        before = self._pending
        if not before and (known := self._texts.get(token)) is not None:
            self.starts.append(self.length)
            self.length += len(known)
            return known
        skipped = self._skip_special and token in self._tokenizer.special_ids
        data = b"" if skipped else self._tokenizer.token_bytes(token)
        self.starts.append(self.length + self._breaks_pending(data))
        joined = before + data
        text, consumed = codecs.utf_8_decode(joined, "replace", False)
        self._pending = joined[consumed:]
        if self._pending and len(broken := self._pending.decode("utf-8", "replace")) > 1:
            # What begins like a surrogate may not go on, though the decoder waits: each byte is one U+FFFD.
            text, self._pending = text + broken, b""
        self.length += len(text)
        if not before and not self._pending:
            self._texts[token] = text
        return text

    def flush(self) -> str:
        """End the text: what is left of an unfinished character becomes U+FFFD."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        self.length += len(text)
        return text

    def tokens_before(self, cut: int) -> int:
        """How many of the pushed tokens stay when the text is cut to its first ``cut`` characters.

        A token stays if its text begins before the cut. Starts never decrease, so these are the first ones.
        """
        return bisect_left(self.starts, cut)

    def fork(self) -> IncrementalDetokenizer:
        """A detokenizer in the same state that goes its own way."""
        copy = IncrementalDetokenizer(self._tokenizer, self._skip_special, self._texts)
        copy._pending, copy.length, copy.starts = self._pending, self.length, self.starts.copy()
        return copy

    def _breaks_pending(self, data: bytes) -> bool:
        """Whether ``data`` begins after the pending bytes' character: as U+FFFD, it is one of its own."""
        if not self._pending or not data:
            return False
        return len((self._pending + data[:1]).decode("utf-8", "replace")) > 1
