"""One hypothesis of a request: its tokens, the text they make, and where both end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from unspool.engine.request import Read
from unspool.engine.stop import StopMatcher
from unspool.engine.track import Track
from unspool.results import Alternative, Candidate, Chunk, FinishReason, Token
from unspool.sampling.chain import ChainMemory
from unspool.sampling.rules import Facts
from unspool.strategy import Figures, Ranked

if TYPE_CHECKING:
    from unspool.engine.drafted import Drafted
    from unspool.engine.flight import Flight


class Detokenizer(Protocol):
    """Text from tokens as they come; never half a character."""

    @property
    def incomplete(self) -> bool:
        """Whether the last pushed token's text may go on: part of a character is left."""
        ...

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

    def fork(self) -> Detokenizer:
        """One in the same state that goes its own way."""
        ...


class TokenTexts(Protocol):
    """What a tokenizer must offer here."""

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes of one token."""
        ...


class Branch:
    """A branch: its tracks, its generated tokens with their figures, and the text of those that are final.

    Tokens ``0..final-1`` are final; later ones are provisional. Final token i completed
    ``text[ends[i - 1]:ends[i]]`` at the time ``times[i]``. Once ``finish_reason`` is set, ``kept`` tokens and
    ``cut`` characters are the result.

    growing: whether it has not ended: finished, or dropped without a result.
    order: where it stands among all branches: the least goes first and is preempted last.
    places: how many of a step's tokens, or rows if they are more, it takes to go on by one.
    running: whether it has a place in the cache. A fork holds blocks from the first, and has none yet.
    drafted: the guesses that run with it in the step under way.
    row: whether that step computes its last token, whose row is wanted.
    reader: takes the row of each of the prompt's tokens, if it has one; read: how many it has taken.
    score: what results are ranked by, and total: the sum that it is made of, where the strategy says so.
    states: hidden states of its first tokens, piece by piece, where the strategy wants them; known: of how
        many tokens. hidden_row: the first of its hidden states in the step under way.
    """

    __slots__ = (
        "cut",
        "detokenizer",
        "drafted",
        "ends",
        "figures",
        "final",
        "finish_reason",
        "flight",
        "growing",
        "hidden_row",
        "index",
        "kept",
        "known",
        "matcher",
        "memory",
        "order",
        "pieces",
        "places",
        "read",
        "reader",
        "request",
        "row",
        "running",
        "score",
        "shown",
        "shown_tokens",
        "states",
        "stop_reason",
        "times",
        "token_ids",
        "tokenizer",
        "told",
        "total",
        "tracks",
    )

    def __init__(
        self,
        flight: Flight,
        index: int,
        tracks: list[Track],
        detokenizer: Detokenizer,
        tokenizer: TokenTexts,
        memory: ChainMemory | None,
        reader: Read | None = None,
    ) -> None:
        request = flight.request
        self.flight = flight
        self.request = request
        self.index = index
        self.order = (-request.params.priority, flight.number, index)
        self.tracks = tracks
        self.places = max(len(tracks), self.rows)
        self.tokenizer = tokenizer
        self.detokenizer = detokenizer
        self.matcher = StopMatcher(request.stops) if request.stops is not None else None
        self.memory = memory
        self.reader = reader
        self.token_ids: list[int] = []
        self.figures: list[Figures] = []
        self.pieces: list[str] = []
        self.ends: list[int] = []
        self.times: list[float] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.final = self.kept = self.cut = 0
        self.shown = self.shown_tokens = 0
        self.read = request.read_from
        self.growing = True
        self.running = self.row = self.told = False
        self.drafted: Drafted | None = None
        self.score: float | None = None
        self.total = 0.0
        self.states: list[npt.NDArray[np.float32]] = []
        self.known = self.hidden_row = 0

    @property
    def length(self) -> int:
        """Characters of text so far, those past a stop included."""
        return self.ends[-1] if self.ends else 0

    @property
    def final_ids(self) -> list[int]:
        """The generated tokens that are final."""
        return self.token_ids if self.final == len(self.token_ids) else self.token_ids[: self.final]

    @property
    def reading(self) -> bool:
        """Whether rows of its prompt are still to be taken by its reader."""
        return self.reader is not None and self.read < len(self.request.prompt)

    @property
    def position(self) -> int:
        """The position of its next token."""
        return len(self.request.prompt) + len(self.token_ids)

    @property
    def rows(self) -> int:
        """How many rows its tracks give for one token."""
        return sum(track.rows for track in self.tracks)

    def pending(self) -> int:
        """How many tokens are not computed yet, over its tracks."""
        generated, tracks = len(self.token_ids), self.tracks
        if len(tracks) == 1:
            return tracks[0].pending(generated)
        return sum(track.pending(generated) for track in tracks)

    def append(self, token: int, figures: Figures) -> None:
        """Take in a token for the time being."""
        if self.memory is not None:
            self.memory.extend(token, facts_of(figures))
        self.token_ids.append(token)
        self.figures.append(figures)

    def commit(self, now: float) -> bool:
        """Make the provisional tokens final, up to the one that ends the branch; whether one did."""
        while self.growing and self.final < len(self.token_ids):
            self.final += 1
            self._take(self.token_ids[self.final - 1], now)
        return not self.growing

    def _take(self, token: int, now: float) -> None:
        """Turn a token that is final now into text, and end the branch where it or its text does."""
        request = self.request
        ends_here = token in request.end_ids
        if ends_here and not request.params.include_stop:
            return self.finish("stop", token)
        piece = self.detokenizer.push(token)
        self.pieces.append(piece)
        self.ends.append(self.length + len(piece))
        self.times.append(now)
        if ends_here:
            self.finish("stop", token)
        elif self.matcher is not None and self.matcher.push(piece):
            self.finish("stop", None)
        elif len(self.pieces) == request.max_tokens:
            self.finish("length", None)

    def fork(self, index: int) -> Branch:
        """A branch of the same tokens, text and rules, which shares every block."""
        tracks = [track.fork() for track in self.tracks]
        memory = None if self.memory is None else self.memory.fork()
        twin = Branch(self.flight, index, tracks, self.detokenizer.fork(), self.tokenizer, memory)
        twin.matcher = None if self.matcher is None else self.matcher.fork()
        for name in ("token_ids", "figures", "pieces", "ends", "times", "states"):
            setattr(twin, name, getattr(self, name).copy())
        twin.final, twin.known = self.final, self.known
        return twin

    def fork_back(self, index: int, length: int) -> Branch:
        """A branch of the first ``length`` tokens alone, final as they were, whose row is still to come."""
        request = self.request
        memory = request.chain.memory(request.prompt)
        tracks = [track.fork() for track in self.tracks]
        twin = Branch(self.flight, index, tracks, self.flight.new_detokenizer(), self.tokenizer, memory)
        for token, figures, time in zip(self.token_ids[:length], self.figures, self.times, strict=False):
            twin.append(token, figures)
            twin.commit(time)
        for track in tracks:
            track.truncate(len(track.prefix) + length - 1)
        twin.states, twin.known = self.states.copy(), self.known
        twin.forget_states(len(request.prompt) + length - 1)
        return twin

    def take_states(self, states: npt.NDArray[np.float32]) -> None:
        """Keep the hidden states, [n, hidden_size], of the next n of its tokens."""
        self.states.append(states)
        self.known += len(states)

    def forget_states(self, length: int) -> None:
        """Keep the hidden states of the first ``length`` tokens alone."""
        while self.known > length:
            last = self.states.pop()
            self.known -= len(last)
            if self.known < length:
                self.take_states(last[: length - self.known])

    def hidden(self, first: int) -> npt.NDArray[np.float32]:
        """[n, hidden_size] the hidden states that are known, from position ``first`` on."""
        if len(self.states) == 1 and first == 0:
            return self.states[0]
        pieces, at = [], self.known
        for piece in reversed(self.states):
            at -= len(piece)
            pieces.append(piece[max(0, first - at) :])
            if at <= first:
                break
        return np.concatenate(pieces[::-1])

    @property
    def holds_blocks(self) -> bool:
        """Whether something of it is cached."""
        return any(track.table.num_blocks for track in self.tracks)

    def free(self) -> None:
        """Give the cache blocks back."""
        self.running = False
        for track in self.tracks:
            track.free()

    def forget(self) -> None:
        """Begin again in caches that were reset."""
        self.running, self.drafted = False, None
        for track in self.tracks:
            track.forget()

    def finish(self, reason: FinishReason, token: int | None) -> None:
        """End the branch: bring out half a character that is left, cut at a stop string."""
        matcher = self.matcher
        if matcher is None or matcher.match is None:
            rest = self.detokenizer.flush()
            if rest and self.pieces:
                self.pieces[-1] += rest
                self.ends[-1] += len(rest)
                if matcher is not None:
                    matcher.push(rest)
        self.growing = False
        self.finish_reason, self.stop_reason = reason, token
        self.kept, self.cut = len(self.pieces), self.length
        if matcher is not None and matcher.match is not None:
            match = matcher.match
            self.finish_reason, self.stop_reason = "stop", match.string
            self.cut = match.end if self.request.params.include_stop else match.start
            self.kept = self.detokenizer.tokens_before(self.cut)

    def text(self) -> str:
        """The text of the result, or so far."""
        text = "".join(self.pieces)
        return text if self.finish_reason is None else text[: self.cut]

    def tokens(self, start: int, stop: int) -> list[Token]:
        """Tokens ``start..stop-1`` with their figures; the last one's text ends where the result's does."""
        made = []
        for i in range(start, stop):
            figures = self.figures[i]
            piece = self.pieces[i]
            if self.finish_reason is not None and self.ends[i] > self.cut:
                piece = piece[: len(piece) - (self.ends[i] - self.cut)]
            made.append(
                Token(
                    self.token_ids[i],
                    piece,
                    figures.logprob,
                    figures.processed_logprob,
                    figures.rank,
                    figures.entropy,
                    figures.kept,
                    alternatives_of(figures.best, self.tokenizer),
                    alternatives_of(figures.best_processed, self.tokenizer),
                    figures.trace,
                )
            )
        return made

    def take_chunk(self) -> Chunk | None:
        """What became certain since the last chunk: text past every possible stop, and its tokens."""
        if self.told:
            return None
        self.told = self.finish_reason is not None
        safe, upto = self.certain
        if self.finish_reason is None and safe == self.shown and upto == self.shown_tokens:
            return None
        return self.show(safe, upto, self.index)

    @property
    def certain(self) -> tuple[int, int]:
        """How many characters, and how many tokens, stay as they are whatever this branch goes on with."""
        if self.finish_reason is not None:
            return self.cut, self.kept
        safe = self.length if self.matcher is None else self.matcher.safe
        return safe, self._certain_tokens(safe)

    def show(self, safe: int, upto: int, index: int) -> Chunk:
        """The text up to character ``safe`` and the tokens before ``upto``, from the last chunk on."""
        first = self.shown_tokens
        base = self.ends[first - 1] if first > 0 else 0
        text = "".join(self.pieces[first:])[self.shown - base : safe - base]
        tokens = tuple(self.tokens(first, upto))
        self.shown, self.shown_tokens = safe, upto
        return Chunk(text, tokens, index, self.finish_reason, self.stop_reason)

    def _certain_tokens(self, safe: int) -> int:
        """How many tokens stay whatever follows, with the text that they have now.

        Their text lies before ``safe``, and what may be left of a character goes to the last token.
        """
        count, starts = self.shown_tokens, self.detokenizer.starts
        while count < len(self.ends) and self.ends[count] <= safe and starts[count] < safe:
            count += 1
        return count - (self.shown_tokens < count == len(self.ends) and self.detokenizer.incomplete)

    def candidate(self) -> Candidate:
        """The finished branch as a result."""
        assert self.finish_reason is not None
        return Candidate(
            index=self.index,
            text=self.text(),
            token_ids=self.token_ids[: self.kept],
            tokens=self.tokens(0, self.kept),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            score=self.score,
            total=None if self.score is None else self.total,
        )


def text_of(token: int, tokenizer: TokenTexts) -> str:
    """A token's own text; bytes that are no whole character by themselves become U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def alternatives_of(ranked: Ranked, tokenizer: TokenTexts) -> tuple[Alternative, ...]:
    """Ranked tokens with their texts."""
    return tuple(
        Alternative(token, text_of(token, tokenizer), logprob, processed)
        for token, logprob, processed in ranked
    )


def facts_of(figures: Figures) -> Facts:
    """What rules may learn of a drawn token."""
    return Facts(figures.surprise, -figures.processed_logprob)
