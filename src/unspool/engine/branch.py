"""One hypothesis of a request: its tokens, the text they make, and where both end."""

from __future__ import annotations

import codecs
from typing import Literal, Protocol

from unspool.cache import BlockTable
from unspool.engine.history import PenaltyHistory
from unspool.engine.request import Request
from unspool.engine.stop import StopMatcher
from unspool.results import Alternative, Candidate, Chunk, FinishReason, Token

Figures = tuple[float, float, int, float, int, tuple[tuple[int, float], ...]]
"""Raw log-probability, processed one, rank, entropy, kept, and the most probable (id, log-probability)."""


class Detokenizer(Protocol):
    """Text from tokens as they come; never half a character."""

    @property
    def starts(self) -> list[int]:
        """For each pushed token, the character at which its text begins; never decreasing."""
        ...

    def tokens_before(self, cut: int, /) -> int:
        """How many tokens' texts begin before character ``cut``."""
        ...

    def push(self, token: int, /) -> str:
        """The text that ``token`` completes."""
        ...

    def flush(self) -> str:
        """What is left of an incomplete character."""
        ...


class TokenTexts(Protocol):
    """What a tokenizer must offer here."""

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes of one token."""
        ...


class Branch:
    """A branch: its block table, its generated tokens with their figures, and its text.

    Token i completed ``text[ends[i - 1]:ends[i]]``. Once ``finish_reason`` is set, ``kept`` tokens and
    ``cut`` characters are the result.
    """

    __slots__ = (
        "cut",
        "detokenizer",
        "ends",
        "figures",
        "finish_reason",
        "history",
        "index",
        "kept",
        "matcher",
        "pieces",
        "request",
        "shown",
        "shown_tokens",
        "stop_reason",
        "table",
        "token_ids",
        "tokenizer",
    )

    def __init__(self, request: Request, index: int, detokenizer: Detokenizer, tokenizer: TokenTexts) -> None:
        self.request = request
        self.index = index
        self.table: BlockTable | None = None
        self.tokenizer = tokenizer
        self.detokenizer = detokenizer
        self.matcher = StopMatcher(request.stops) if request.stops is not None else None
        scope = request.params.penalty_scope or "output"
        penalized = request.params.repetition_penalty not in (None, 1.0)
        self.history = PenaltyHistory(scope, request.prompt) if penalized else None
        self.token_ids: list[int] = []
        self.figures: list[Figures] = []
        self.pieces: list[str] = []
        self.ends: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.kept = self.cut = 0
        self.shown = self.shown_tokens = 0

    @property
    def length(self) -> int:
        """Characters of text so far, those past a stop included."""
        return self.ends[-1] if self.ends else 0

    def accept(self, token: int, figures: Figures) -> bool:
        """Take in a drawn token; whether it ended the branch."""
        request = self.request
        if self.history is not None:
            self.history.extend((token,))
        ends_here = token in request.end_ids
        if ends_here and not request.params.include_stop:
            return self._finish("stop", token)
        piece = self.detokenizer.push(token)
        self.token_ids.append(token)
        self.figures.append(figures)
        self.pieces.append(piece)
        self.ends.append(self.length + len(piece))
        if ends_here:
            return self._finish("stop", token)
        if self.matcher is not None and self.matcher.push(piece):
            return self._finish("stop", None)
        if len(self.token_ids) == request.max_tokens:
            return self._finish("length", None)
        return False

    def free(self) -> None:
        """Give the cache blocks back."""
        if self.table is not None:
            self.table.free()
            self.table = None

    def _finish(self, reason: FinishReason, token: int | None) -> bool:
        """End the branch: bring out half a character that is left, cut at a stop string."""
        matcher = self.matcher
        if matcher is None or matcher.match is None:
            rest = self.detokenizer.flush()
            if rest and self.pieces:
                self.pieces[-1] += rest
                self.ends[-1] += len(rest)
                if matcher is not None:
                    matcher.push(rest)
        self.finish_reason, self.stop_reason = reason, token
        self.kept, self.cut = len(self.token_ids), self.length
        if matcher is not None and matcher.match is not None:
            match = matcher.match
            self.finish_reason, self.stop_reason = "stop", match.string
            self.cut = match.end if self.request.params.include_stop else match.start
            self.kept = self.detokenizer.tokens_before(self.cut)
        return True

    def text(self) -> str:
        """The text of the result, or so far."""
        text = "".join(self.pieces)
        return text if self.finish_reason is None else text[: self.cut]

    def tokens(self, start: int, stop: int) -> list[Token]:
        """Tokens ``start..stop-1`` with their figures; the last one's text ends where the result's does."""
        made = []
        for i in range(start, stop):
            logprob, processed, rank, entropy, kept, top = self.figures[i]
            piece = self.pieces[i]
            if self.finish_reason is not None and self.ends[i] > self.cut:
                piece = piece[: len(piece) - (self.ends[i] - self.cut)]
            alternatives = tuple(Alternative(t, self._token_text(t), p) for t, p in top)
            made.append(
                Token(self.token_ids[i], piece, logprob, processed, rank, entropy, kept, alternatives)
            )
        return made

    def _token_text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")

    def take_chunk(self) -> Chunk | None:
        """What became certain since the last chunk: text past every possible stop, and its tokens."""
        if self.finish_reason is not None:
            safe, upto = self.cut, self.kept
        else:
            safe = self.length if self.matcher is None else self.matcher.safe
            upto = self._certain_tokens(safe)
        if self.finish_reason is None and safe == self.shown and upto == self.shown_tokens:
            return None
        first = self.shown_tokens
        base = self.ends[first - 1] if first > 0 else 0
        text = "".join(self.pieces[first:])[self.shown - base : safe - base]
        tokens = tuple(self.tokens(first, upto))
        self.shown, self.shown_tokens = safe, upto
        return Chunk(text, tokens, self.index, self.finish_reason, self.stop_reason)

    def _certain_tokens(self, safe: int) -> int:
        """How many tokens stay whatever follows, with the text that they have now.

        Their text lies before ``safe``, and what may be left of a character goes to the last token.
        """
        count, starts = self.shown_tokens, self.detokenizer.starts
        while count < len(self.ends) and self.ends[count] <= safe and starts[count] < safe:
            count += 1
        if count == len(self.ends) > self.shown_tokens:
            data = self.tokenizer.token_bytes(self.token_ids[-1])
            count -= codecs.utf_8_decode(data, "replace", False)[1] < len(data)
        return count

    def candidate(self) -> Candidate:
        """The finished branch as a result."""
        reason: FinishReason | Literal["length"] = self.finish_reason or "length"
        return Candidate(
            index=self.index,
            text=self.text(),
            token_ids=self.token_ids[: self.kept],
            tokens=self.tokens(0, self.kept),
            finish_reason=reason,
            stop_reason=self.stop_reason,
        )
