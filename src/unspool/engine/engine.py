"""The engine: requests come at any time, and each step computes some tokens of many."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np

from unspool.backend.base import Backend
from unspool.cache import blocks_for_tokens
from unspool.combine.source import MAIN, Source, TrackSpec
from unspool.engine.branch import Branch, Detokenizer, TokenTexts
from unspool.engine.cached_backend import CachedBackend
from unspool.engine.computer import Computer
from unspool.engine.flight import Flight
from unspool.engine.host import Host
from unspool.engine.look import Look
from unspool.engine.prompt_figures import PromptFigures
from unspool.engine.request import Limits, Read, Request, check_fit, check_prompt, prepare, prepare_reading
from unspool.engine.row_sampler import Drawn
from unspool.engine.scheduler import Scheduler
from unspool.engine.stats import EngineStats, Meter, known_tokens, snapshot
from unspool.engine.track import Track
from unspool.engine.turns import Turns
from unspool.errors import ContextLengthError, ParameterError, UnspoolError, shown
from unspool.params import SamplingParams, Settings
from unspool.speculate.draft import Proposer
from unspool.strategy import RowResult

STEP_TOKENS = 512
"""The most tokens that a step is given, where the backend allows as many."""

T = TypeVar("T")


class Vocabulary(TokenTexts, Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends generation."""
        ...


class Engine:
    """Runs requests on a backend whose cache of ``num_blocks`` blocks it allocates and owns.

    Any thread may submit and cancel; one at a time, the driver, takes steps (``drive``). A step starts
    branches, computes the tokens that the scheduler plans in one forward pass, draws, and lets strategies
    grow. What a request gets depends on nothing but itself.

    new_detokenizer: makes a detokenizer, given whether special tokens leave no text.
    settings: the model's own sampling settings, by the names of ``SamplingParams``.
    others: further backends that tracks may run through, by name, each with its number of blocks.
    step_tokens: the most tokens of a step.
    sharing: whether requests share the cache of what their prompts have in common.
    """

    def __init__(
        self,
        backend: Backend,
        vocabulary: Vocabulary,
        new_detokenizer: Callable[[bool], Detokenizer],
        *,
        num_blocks: int,
        settings: Settings | None = None,
        others: Mapping[str, tuple[Backend, int]] | None = None,
        step_tokens: int | None = None,
        sharing: bool = True,
    ) -> None:
        named = {MAIN: (backend, num_blocks), **(others or {})}
        self.homes = {
            name: CachedBackend(name, each, blocks, sharing=sharing) for name, (each, blocks) in named.items()
        }
        self.main = self.homes[MAIN]
        self.vocabulary = vocabulary
        self.new_detokenizer = new_detokenizer
        self.settings = Settings() if settings is None else settings
        self.limits = self._limits_of(self.main)
        most = min(home.backend.max_step_tokens for home in self.homes.values())
        self.step_tokens = min(STEP_TOKENS if step_tokens is None else step_tokens, most)
        self.host = Host()
        self.scheduler = Scheduler(self.homes.values(), self.step_tokens, self.host)
        self.meter = Meter()
        self.computer = Computer(tuple(self.homes.values()), self.main, self._fail, self.host)
        self._flights: dict[Flight, None] = {}
        self._inbox: deque[Flight] = deque()
        """Flights to begin, or to end where they are cancelled; any thread may add one."""
        self._numbers = itertools.count(1)
        self._process = os.getpid()
        self._turns = Turns()
        weakref.finalize(self, self._turns.park, self._process)  # at the end of the program, if not before
        self._late: dict[Flight, None] = {}
        """Streams with tokens that have not been put out yet."""

    def prepare(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        source: Source | None = None,
        proposer: Proposer | None = None,
    ) -> Request:
        """A request, checked; nothing is computed before it is submitted.

        source: the tracks that its branches run through; the first one's prefix is the prompt.
        proposer: guesses tokens ahead; the tokens are the same.

        Raises ``ParameterError`` or ``ContextLengthError`` for what cannot be honoured.
        """
        request = prepare(prompt, params, self.limits, self.settings, source=source, proposer=proposer)
        return request if source is None else replace(request, source=self._checked(source, request))

    def prepare_reading(self, token_ids: Sequence[int], read: Read) -> Request:
        """A request that computes a sequence and gives ``read`` the logits of its tokens, piece by piece.

        Raises as ``prepare`` does, except that a sequence may fill the context.
        """
        return prepare_reading(token_ids, read, self.limits)

    def prepare_look(self, request: Request) -> tuple[Request, Look]:
        """A request that computes another one's prompt, and what will have the law of its first token."""
        look = Look(request, self.computer.sampler, self.vocabulary)
        last = len(request.prompt) - 1
        return prepare_reading(request.prompt, look.read, self.limits, last, request.params), look

    def submit(
        self,
        request: Request,
        *,
        streaming: bool = False,
        on_event: Callable[[], None] | None = None,
        interval: float = 0.0,
    ) -> Flight:
        """Let a request take part in the steps to come; returns at once. See ``Flight``.

        Raises ``UnspoolError`` in a process that was forked from the one that made the engine, and
        ``ParameterError`` for a strategy without branches.
        """
        self.check_process()
        if request.strategy.width < 1:
            raise ParameterError(f"a strategy begins with a branch or more, not {request.strategy.width}")
        number = next(self._numbers)
        flight = Flight(request, number, streaming=streaming, on_event=on_event, interval=interval)
        self._inbox.append(flight)
        self.wake()
        return flight

    def attach(self, name: str, backend: Backend, num_blocks: int) -> None:
        """Give tracks a further backend, with a cache of its own, after the step under way.

        Nothing happens where there is one of that name.
        """

        def attach() -> None:
            if name not in self.homes:
                self.homes[name] = home
                self.scheduler.homes.append(home)
                self.computer.attach(home)
                self.step_tokens = self.scheduler.step_tokens = min(self.step_tokens, backend.max_step_tokens)

        home = CachedBackend(name, backend, num_blocks, sharing=self.main.sharing)
        self._turns.between_steps(attach)

    def cancel(self, flight: Flight, error: UnspoolError | None = None) -> None:
        """End a flight, if it has not ended, with an error; its blocks are free before the next step."""
        if flight.done or self.forked:
            return
        if flight.cancelled is None:
            flight.cancelled = error or UnspoolError(f"request {flight.number} was cancelled")
        self._inbox.append(flight)
        self._turns.soon(lambda: self._guarded(self._settle))

    @property
    def forked(self) -> bool:
        """Whether the process that made the engine is another one, in which its threads and locks are."""
        return os.getpid() != self._process

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._inbox) or not self.scheduler.idle

    def drive(self, wanted: Callable[[], bool], each_step: Callable[[], None] | None = None) -> None:
        """Return when ``wanted()``: take steps until then, or wait while another thread takes them.

        ``each_step`` is called after each step that this thread took. Raises ``UnspoolError`` as ``submit``
        does, and within a callback.
        """
        self.check_process()
        self._turns.drive(self.step, wanted, each_step, lambda: self.busy)

    def sleep(self, closing: Callable[[], bool]) -> None:
        """Wait until there is something to compute, or ``closing()``, said with ``wake``."""
        self._turns.sleep(lambda: closing() or self.busy)

    def wake(self) -> None:
        """Let waiting threads look again."""
        self._turns.wake()

    def step(self) -> bool:
        """Compute one step; whether there was anything to compute. For the driver alone.

        An exception that comes from outside, such as ``KeyboardInterrupt``, leaves an engine that goes on:
        caches are emptied, and what was computed of other requests is computed again.
        """
        return self._guarded(self._step)

    def abort(self, error: UnspoolError) -> None:
        """End every request with an error."""
        for flight in [*self._inbox, *self._flights]:
            self.cancel(flight, error)

    def stats(self) -> EngineStats:
        """How the engine stands now; where another thread is in a step, after that. Raises as ``submit``."""
        self.check_process()
        return self._turns.between_steps(
            lambda: snapshot(self.meter, self.computer, self.scheduler, self.main, tuple(self._flights))
        )

    def _guarded(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except BaseException:
            self._recover()
            raise

    def _step(self) -> bool:
        began = perf_counter()
        self._settle()
        if self.scheduler.idle:
            return False
        try:
            planned = self.scheduler.plan()
        except Exception as error:
            self._blame_considered(error)
            return True
        if self.scheduler.faults:
            planned = self._drop_faulty(planned)
            if not planned:
                return True
        if not planned:
            self._give_up()
            return True
        flights = dict.fromkeys([branch.flight for branch in planned])
        before, known = sum([flight.generated for flight in flights]), known_tokens(planned)
        self._grow(self.computer.compute(planned))
        generated = sum([flight.generated for flight in flights]) - before
        self._finish_step(planned, flights)
        self.meter.step(known, generated, began, perf_counter())
        return True

    def _settle(self) -> None:
        """Begin flights that came, and end those that were cancelled."""
        while self._inbox:
            flight = self._inbox[0]  # it stays there until it is dealt with, should an interrupt come
            if flight.cancelled is not None:
                if not flight.done:
                    self.meter.cancelled += 1
                    self._end(flight, flight.cancelled)
            elif flight not in self._flights and not flight.done:
                try:
                    self._begin(flight)
                except Exception as error:
                    self._fail(flight, error)
            self._inbox.popleft()

    def _begin(self, flight: Flight) -> None:
        """Make a flight's branches. The first goes ahead; the others start from what it has computed."""
        request, salt = flight.request, flight.request.params.cache_salt
        memory, reader = request.chain.memory(request.prompt), request.read
        if request.params.prompt_logprobs is not None:
            flight.prompt_figures = PromptFigures(request, self.computer.sampler, self.vocabulary)
            reader = flight.prompt_figures.read
        branches = []
        flight.new_detokenizer = partial(self.new_detokenizer, request.params.skip_special_tokens)
        for index in range(request.strategy.width):
            if request.source is None:
                tracks = [Track(self.main, request.prompt, None, salt)]
            else:
                specs = request.source.tracks
                tracks = [Track(self.homes[s.backend], list(s.prefix), s.exits, salt) for s in specs]
            detokenizer = flight.new_detokenizer()
            own = memory if memory is None or index == 0 else memory.fork()
            reads = reader if index == 0 else None
            branches.append(Branch(flight, index, tracks, detokenizer, self.vocabulary, own, reads))
        flight.branches = branches
        self._flights[flight] = None
        self.scheduler.queue(branches[:1])

    def _drop_faulty(self, planned: list[Branch]) -> list[Branch]:
        """End the requests whose proposers failed."""
        faults, self.scheduler.faults = self.scheduler.faults, []
        for flight, error in faults:
            self._fail(flight, error)
        return [branch for branch in planned if branch.growing]

    def _give_up(self) -> None:
        """Nothing can run, as branches that grow together hold their blocks and wait for others' places.

        Later requests make way for the first. Where it has the cache for itself, its branches do not fit.
        """
        if self.scheduler.idle:
            return
        first = self.scheduler.give_way()
        if first is not None:
            self._fail(
                first,
                ContextLengthError(
                    f"the request's branches do not fit in the cache of {self.limits.cache_tokens} tokens "
                    "together: give a larger cache_tokens or cache_memory"
                ),
            )

    def _blame_considered(self, error: Exception) -> None:
        """End the request that could not be planned, which would come again; all else is computed again."""
        branch = self.scheduler.considered
        if branch is None or branch.flight.done:
            raise error
        self._recover()
        self._fail(branch.flight, error)

    def _grow(self, drawn: list[Drawn]) -> None:
        """Let each request's strategy grow its branches."""
        now = perf_counter()
        for flight, group in itertools.groupby(drawn, key=lambda row: row[0].flight):
            frontier = []
            if flight.done:  # it failed in another part of a step that was computed in parts
                continue
            for branch, node, token, figures, offers, law in group:
                if branch.drafted is not None:
                    branch.drafted.rows[node] = (token, figures)
                if node < 0:
                    frontier.append(RowResult(branch, token, figures, offers, law))
            self.host.run(flight, partial(flight.grow, frontier, now), self._fail)

    def _finish_step(self, planned: list[Branch], flights: dict[Flight, None]) -> None:
        """Settle what this step's growth left in the caches, and tell who waits."""
        now = perf_counter()
        for branch in planned:
            if branch.drafted is not None:
                keep_path(branch)
            final = branch.final_ids
            for track in branch.tracks:
                track.share(final)
            if not branch.growing:
                self.scheduler.remove(branch)
        for flight in flights:
            if flight.request.strategy.together or flight.forks or flight.dropped:
                self._follow_forks(flight)
            begun = flight.all_begun or flight.request.strategy.width == 1
            if not begun and any(branch.row for branch in planned if branch.flight is flight):
                flight.all_begun = True
                others = (b for b in flight.branches if b.index < flight.request.strategy.width)
                self.scheduler.queue(b for b in others if b.growing and not b.running)
            if flight.done:
                continue
            if flight.due <= now or flight.ended:
                self._publish(flight, now)
            elif flight.streaming:
                self._late[flight] = None
        for flight in [late for late in self._late if late not in flights]:
            self._publish(flight, now)  # it did not run, and may not for a while

    def _follow_forks(self, flight: Flight) -> None:
        """Give this step's forks their places, and free what ended without having been planned."""
        flight.dropped = False
        for branch in [b for b in self.scheduler.running if b.flight is flight and not b.growing]:
            self.scheduler.remove(branch)
        forks, flight.forks = flight.forks, []
        for branch in forks:
            branch.drafted = None
            if not branch.growing or flight.done:
                branch.free()
            elif branch.holds_blocks:
                self.scheduler.place(branch)
            else:
                self.scheduler.queue([branch])

    def _publish(self, flight: Flight, now: float) -> None:
        """Put out what a flight has come to, and let go of one that has ended."""
        self._late.pop(flight, None)

        def publish() -> None:
            ended = flight.ended
            news = flight.publish(ended, now)
            if ended:
                self._flights.pop(flight, None)
                self.meter.finished += 1
                flight.done = True
            if news and flight.on_event is not None:
                flight.on_event()

        self.host.run(flight, publish, self._fail)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        """End a flight with an error."""
        if not flight.done:
            self.meter.failed += 1
            self._end(flight, error)

    def _end(self, flight: Flight, error: BaseException) -> None:
        """End a flight, free its branches, and tell who waits for it."""
        flight.error = error  # first of all: an interrupt from here on finds it, and ends the flight with it
        for branch in [*flight.branches, *flight.forks]:
            branch.growing = False
            self.scheduler.remove(branch)
        flight.forks.clear()
        self.host.run(flight, partial(flight.fail, error), self._fail)
        self._leave(flight)

    def _leave(self, flight: Flight) -> None:
        """Let go of a flight that is done."""
        self._flights.pop(flight, None)
        self._late.pop(flight, None)

    def _recover(self) -> None:
        """After an interrupted step: compute everything again but the request whose own code was running."""
        for home in self.homes.values():
            home.reset()
        guest, self.host.guest = self.host.guest, None
        for flight in self._flights:
            flight.forks.clear()  # they start again like all others
            flight.all_begun = flight.all_begun or any(b.token_ids or not b.growing for b in flight.branches)
        self.scheduler.reset(branch for flight in self._flights for branch in flight.branches)
        if guest is not None and not guest.done and guest.error is None:
            self.meter.failed += 1
            guest.error = UnspoolError(f"request {guest.number} was interrupted")
        for flight in tuple(self._flights if guest is None else {guest: None} | self._flights):
            with suppress(BaseException):  # of a callback, on top of what is being raised
                self._bring_to_end(flight)
            if flight.done:
                self._leave(flight)
        self.host.guest = None

    def _bring_to_end(self, flight: Flight) -> None:
        """Do what an interrupt may have left undone of a flight's end."""
        if flight.error is not None:
            self._end(flight, flight.error)
        elif flight.done:
            flight.tell()
        elif not flight.growing:
            self._publish(flight, perf_counter())

    def check_process(self) -> None:
        """Raise ``UnspoolError`` in a process that was forked from the one that made the engine."""
        if self.forked:
            raise UnspoolError(
                "this LLM was made before the process forked, and its threads are not in this one: make it "
                "after the fork, or start processes by spawning"
            )

    def _limits_of(self, home: CachedBackend) -> Limits:
        spec = home.backend.spec
        return Limits(
            vocab_size=spec.vocab_size,
            context_length=spec.context_length,
            cache_tokens=home.pool.num_tokens,
            eos_ids=frozenset(self.vocabulary.eos_ids),
        )

    def _checked(self, source: Source, request: Request) -> Source:
        """A source of a request's own, which stays as it is whatever becomes of the caller's lists.

        Raises for tracks that this engine cannot run.
        """
        tracks = []
        rows = [track.rows for track in source.tracks]
        if not rows or min(rows) < 1 or sum(rows) > self.step_tokens:
            raise ParameterError(
                "a source has one track or more, each with one exit or more, and "
                f"{self.step_tokens} rows or fewer, not {len(rows)} tracks with {rows} exits"
            )
        blocks = dict.fromkeys(self.homes, 0)
        for track in source.tracks:
            if track.backend not in self.homes:
                raise ParameterError(
                    f"there is no backend {track.backend!r}; there is {', '.join(self.homes)}"
                )
            home = self.homes[track.backend]
            limits = self._limits_of(home)
            if limits.vocab_size != self.limits.vocab_size:
                raise ParameterError(
                    f"the rows of backend {track.backend!r} have {limits.vocab_size} tokens, the model's "
                    f"{self.limits.vocab_size}: they cannot be combined"
                )
            prefix = check_prompt(track.prefix, limits.vocab_size)
            tracks.append(replace(track, prefix=prefix, exits=track.exits and tuple(track.exits)))
            check_fit(len(prefix), request.max_tokens, limits)
            blocks[track.backend] += blocks_for_tokens(len(prefix) + request.max_tokens)
            if blocks[track.backend] > home.pool.num_blocks:
                raise ContextLengthError(
                    f"the tracks through backend {track.backend!r} with max_tokens={request.max_tokens} do "
                    f"not fit together in its cache of {home.pool.num_tokens} tokens: shorten them, or give "
                    "a larger one"
                )
            check_exits(tracks[-1], home.backend.spec.num_layers)
        if tracks[0].prefix != request.prompt:
            raise ParameterError("the first track's prefix must be the prompt")
        return replace(source, tracks=tuple(tracks))


def check_exits(track: TrackSpec, depth: int) -> None:
    """Raise ``ParameterError`` for exits that are not after one of a backend's layers."""
    for layers in track.exits or ():
        if layers not in range(1, depth + 1) or type(layers) is not int:
            raise ParameterError(f"an exit is after 1 to {depth} layers, not {shown(layers)}")


def keep_path(branch: Branch) -> None:
    """Keep of a draft in the caches what the branch said of it, where it would lie without a draft."""
    assert branch.drafted is not None
    path, branch.drafted = branch.drafted.path, None
    for track in branch.tracks:
        if not branch.running:
            continue
        pairs = [
            (track.slots[1 + node], track.slots[1 + at]) for at, node in enumerate(path) if node != at
        ]  # a node never lies before its place, so that in order none is overwritten before it has moved
        if pairs:
            track.home.copies.append(np.array(pairs, dtype=np.int32))
        track.table.truncate(track.start + 1 + len(path))
