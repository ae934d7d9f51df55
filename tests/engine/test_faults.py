"""Whatever fails, wherever: it ends what it belongs to, and all else is as if nothing had been."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unspool
from tests.engine.making import make_engine, run
from tests.speculate.proposers import Scripted
from tests.strategy.models import (
    Alone,
    Recording,
    ask,
    candidates,
    check_empty,
    finish,
    make_native,
    native,
    words,
)
from tests.strategy.together import Beam, Lanes, enumerate_beam, plain_rows
from unspool.backend.base import Int32Array, StepBatch, StepOutput
from unspool.combine.source import LinearCombination, Source, TrackSpec
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.errors import BackendError, ParameterError, RowError, UnspoolError
from unspool.results import Candidate
from unspool.sampling.noise import mix
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.sampler import Law
from unspool.speculate import DraftTree
from unspool.strategy import Sample, Strategy

POISON = 5
"""A token that no healthy request of these tests has in its prompt."""


class CallerError(Exception):
    """What a caller's own code raises."""


class AlarmError(BaseException):
    """What a caller's own signal handler raises."""


def clean(count: int, seed: int) -> list[int]:
    """A prompt without the poison."""
    return [7 if token == POISON else token for token in words(count, seed=seed)]


PROMPT, OTHER = clean(20, 1), clean(6, 2)
GUIDED = Source((TrackSpec(PROMPT), TrackSpec(OTHER)), LinearCombination((1.5, -0.5)))


def guess(tokens: Any, most: int) -> DraftTree:
    """A tree that is now and then right, as tokens repeat under a low temperature."""
    return DraftTree([int(tokens[-1]), int(tokens[-2]), int(tokens[-1])], [-1, -1, 0])


KINDS: list[tuple[list[int], dict[str, Any]]] = [
    (clean(33, 3), {"seed": 1, "max_tokens": 9}),
    (clean(18, 4), {"seed": 2, "max_tokens": 7, "n": 3, "streaming": True}),
    (PROMPT, {"seed": 3, "max_tokens": 6, "source": GUIDED}),
    (clean(12, 5), {"seed": 4, "max_tokens": 10, "proposer": Scripted(guess), "temperature": 0.2, "n": 2}),
    (clean(33, 3), {"seed": 6, "max_tokens": 5, "repetition_penalty": 1.4, "streaming": True}),
]
BEAM_ROWS = plain_rows(PROMPT)


def options_of(kind: int) -> dict[str, Any]:
    return {"ignore_eos": True, **KINDS[kind][1]}


EXPECTED: list[list[Candidate]] = [
    candidates(make_native(), prompt, **options_of(kind)) for kind, (prompt, _) in enumerate(KINDS)
]


def ask_all(engine: Engine) -> list[Flight]:
    """One request of each kind."""
    return [ask(engine, prompt, **options_of(kind)) for kind, (prompt, _) in enumerate(KINDS)]


def check_whole(flight: Flight, kind: int) -> None:
    """A request of a kind has exactly what it has alone, streamed or not."""
    assert flight.generation().candidates == EXPECTED[kind]
    if flight.streaming:
        for candidate in EXPECTED[kind]:
            mine = [chunk for chunk in flight.outbox if chunk.index == candidate.index]
            assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens
            assert mine[-1].finish_reason == candidate.finish_reason


class Poisoned(Recording):
    """Raises wherever the poison is computed, or where a request of the poison's seed draws."""

    def __init__(self, where: str, error: type[Exception]) -> None:
        super().__init__()
        self.where, self.error, self.failures = where, error, 0

    def forward(self, step: StepBatch) -> StepOutput:
        if self.where == "forward" and POISON in step.tokens.tolist():
            self.failures += 1
            raise self.error("poison")
        return super().forward(step)

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        if self.where == "sample" and mix(POISON, 0) in plan.keys.tolist():
            self.failures += 1
            raise self.error("poison")
        return super().sample(output, plan)


@pytest.mark.parametrize("where", ["forward", "sample"])
@pytest.mark.parametrize("error", [BackendError, MemoryError, ValueError])
@pytest.mark.parametrize("place", [0, 7, 30])
def test_the_request_that_makes_a_step_fail_ends_alone(
    where: str, error: type[Exception], place: int
) -> None:
    backend = Poisoned(where, error)
    engine = make_engine(backend, step_tokens=40)
    flights = ask_all(engine)
    prompt = clean(40, 9)
    prompt[place] = POISON
    bad = ask(engine, prompt, seed=POISON, n=2, max_tokens=4)
    flights += ask_all(engine)
    finish(engine, bad, *flights)
    with pytest.raises(error, match="poison"):
        bad.generation()
    assert backend.failures <= 2 + int(np.log2(2 * len(flights) * 3)) * 2
    for i, flight in enumerate(flights):
        if POISON not in [t for c in EXPECTED[i % len(KINDS)] for t in c.token_ids]:
            check_whole(flight, i % len(KINDS))


def test_where_every_request_fails_all_end_and_new_ones_are_taken() -> None:
    class Down(Recording):
        down = True

        def forward(self, step: StepBatch) -> StepOutput:
            if self.down:
                raise BackendError("down")
            return super().forward(step)

    backend = Down()
    engine = make_engine(backend)
    flights = ask_all(engine)
    finish(engine, *flights)
    for flight in flights:
        with pytest.raises(BackendError, match="down"):
            flight.generation()
    assert engine.stats().failed == len(flights)
    backend.down = False
    flights = ask_all(engine)
    finish(engine, *flights)
    for kind, flight in enumerate(flights):
        check_whole(flight, kind)


class Flaky(Recording):
    """Raises at given calls of forward, sample and copy_slots, before or after the work is done."""

    def __init__(self, faults: dict[tuple[str, int], BaseException], late: bool) -> None:
        super().__init__()
        self.faults, self.late = faults, late
        self.calls = {"forward": 0, "sample": 0, "copy_slots": 0}

    def _call(self, name: str, act: Callable[[], Any]) -> Any:
        self.calls[name] += 1
        fault = self.faults.get((name, self.calls[name]))
        made = act() if fault is None or self.late else None
        if fault is not None:
            raise fault
        return made

    def forward(self, step: StepBatch) -> StepOutput:
        return self._call("forward", lambda: super(Flaky, self).forward(step))  # type: ignore[no-any-return]

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        return self._call("sample", lambda: super(Flaky, self).sample(output, plan))  # type: ignore[no-any-return]

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        return self._call("laws", lambda: super(Flaky, self).laws(output, plan))  # type: ignore[no-any-return]

    def copy_slots(self, pairs: Int32Array) -> None:
        self._call("copy_slots", lambda: super(Flaky, self).copy_slots(pairs))


@given(
    faults=st.dictionaries(
        st.tuples(st.sampled_from(["forward", "sample", "copy_slots"]), st.integers(1, 16)),
        st.sampled_from([BackendError, MemoryError, KeyboardInterrupt]),
        min_size=1,
        max_size=4,
    ),
    late=st.booleans(),
    num_blocks=st.integers(8, 30),
    step_tokens=st.integers(8, 64),
)
@settings(max_examples=40)
def test_faults_at_random_calls_harm_nobody_who_does_not_end_with_them(
    faults: dict[tuple[str, int], type[BaseException]], late: bool, num_blocks: int, step_tokens: int
) -> None:
    backend = Flaky({place: error("fault") for place, error in faults.items()}, late)
    engine = make_engine(backend, num_blocks, step_tokens=step_tokens)
    flights = ask_all(engine)
    interrupts = steps_with_interrupts(engine)
    assert interrupts <= sum(error is KeyboardInterrupt for error in faults.values())
    for kind, flight in enumerate(flights):
        assert flight.done
        if flight.error is None:
            check_whole(flight, kind)
        else:
            assert isinstance(flight.error, (BackendError, MemoryError))
    again = ask_all(engine)
    steps_with_interrupts(engine)  # faults that are still to come
    assert all(flight.done for flight in again)


def steps_with_interrupts(engine: Engine) -> int:
    """Take steps until nothing is left; how many were interrupted."""
    interrupts = 0
    while engine.busy:
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    check_empty(engine)
    return interrupts


def test_one_fault_that_does_not_come_again_ends_nobody_where_there_are_several() -> None:
    """What fails once is computed again by halves, and that succeeds."""
    for name in ("forward", "sample", "copy_slots"):
        for late in (False, True):
            engine = make_engine(Flaky({(name, 3): BackendError("once")}, late))
            flights = ask_all(engine)
            finish(engine, *flights)
            for kind, flight in enumerate(flights):
                check_whole(flight, kind)


def nan_after(count: int) -> Callable[[Any], Any]:
    """A combination that gives NaN from some call on."""
    calls = 0

    def combine(rows: Any) -> Any:
        nonlocal calls
        calls += 1
        row = GUIDED.combine(rows)
        return row * np.float32(np.nan) if calls > count else row

    return combine


def throwing(*_: Any) -> Any:
    raise CallerError("mine")


class Throwing(Lanes):
    """A strategy that throws when its branches have three tokens."""

    def grow(self, frontier: Any, branches: Any) -> None:
        super().grow(frontier, branches)
        if len(frontier[0].branch.token_ids) == 3:
            raise CallerError("mine")


class ThrowingFork(Strategy):
    """A strategy that throws when it has just forked, before the fork has its place."""

    width, together = 1, True

    def grow(self, frontier: Any, branches: Any) -> None:
        for branch, token, figures, *_ in frontier:
            branches.append(branch, token, figures)
            branches.commit(branch)
        branches.fork(frontier[0].branch)
        raise CallerError("mine")


class ThrowingBeam(Beam):
    """A strategy that throws when it has just forked and dropped."""

    def grow(self, frontier: Any, branches: Any) -> None:
        super().grow(frontier, branches)
        if self.grown == 4:
            raise CallerError("mine")


class Idle(Strategy):
    """A strategy that leaves its branches as they are."""

    width = 2

    def __init__(self, together: bool) -> None:
        self.together = together

    def grow(self, frontier: Any, branches: Any) -> None:
        pass


class IdleFork(Sample):
    """A strategy that forks a branch before it goes on, and never lets the fork go on."""

    def __init__(self) -> None:
        super().__init__(1)

    def grow(self, frontier: Any, branches: Any) -> None:
        branches.fork(frontier[0].branch)
        super().grow(frontier, branches)


OWN_FAULTS: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception]]] = {
    "combine": (lambda: {"source": Source(GUIDED.tracks, throwing)}, CallerError),
    "NaN": (lambda: {"source": Source(GUIDED.tracks, nan_after(2)), "n": 2}, RowError),
    "strategy": (lambda: {"strategy": Throwing(2, 6)}, CallerError),
    "forking strategy": (lambda: {"strategy": ThrowingBeam(3, 6), "logprobs": 2}, CallerError),
    "strategy that has just forked": (lambda: {"strategy": ThrowingFork()}, CallerError),
    "strategy that does nothing": (lambda: {"strategy": Idle(together=False)}, UnspoolError),
    "strategy that does nothing together": (lambda: {"strategy": Idle(together=True)}, UnspoolError),
    "strategy that leaves a fork as it is": (lambda: {"strategy": IdleFork()}, UnspoolError),
    "rule": (lambda: {"logits_processors": [throwing]}, CallerError),
    "proposer": (lambda: {"proposer": Scripted(throwing)}, CallerError),
    "callback": (lambda: {"on_event": throwing, "streaming": True}, CallerError),
}


@pytest.mark.parametrize("kind", OWN_FAULTS)
def test_a_callers_own_code_that_throws_ends_its_own_request(kind: str) -> None:
    make, error = OWN_FAULTS[kind]
    engine = make_native(40)
    before = ask_all(engine)
    bad = ask(engine, PROMPT, max_tokens=6, ignore_eos=True, seed=1, **make())
    after = ask_all(engine)
    finish(engine, bad, *before, *after)
    with pytest.raises(error):
        bad.generation()
    assert engine.stats().failed == 1
    for flights in (before, after):
        for i, flight in enumerate(flights):
            check_whole(flight, i)


def ways_to_raise(error: BaseException) -> dict[str, dict[str, Any]]:
    """Each place where a caller's own code runs, with code that raises this."""

    def raising(*_: Any) -> Any:
        raise error

    class Raising(Lanes):
        def grow(self, frontier: Any, branches: Any) -> None:
            raise error

    return {
        "combine": {"source": Source(GUIDED.tracks, raising)},
        "strategy": {"strategy": Raising(2, 6)},
        "proposer": {"proposer": Scripted(raising)},
        "rule": {"logits_processors": [raising]},
        "callback": {"on_event": raising, "streaming": True},
    }


PLACES = [*ways_to_raise(CallerError()), "reader"]


def ask_raising(engine: Engine, place: str, error: BaseException) -> Flight:
    """A request whose code raises an error at one of these places, each time."""
    if place != "reader":
        return ask(engine, PROMPT, max_tokens=6, ignore_eos=True, seed=1, **ways_to_raise(error)[place])

    def read(*_: Any) -> None:
        raise error

    return engine.submit(engine.prepare_reading(PROMPT, read))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_what_is_no_ordinary_exception_ends_its_own_request_too(
    place: str, error: type[BaseException]
) -> None:
    engine = make_native(40)
    before = ask_all(engine)
    bad = ask_raising(engine, place, error())
    after = ask_all(engine)
    finish(engine, bad, *before, *after)
    assert isinstance(bad.error, error)
    for flights in (before, after):
        for i, flight in enumerate(flights):
            check_whole(flight, i)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, AlarmError])
def test_what_is_for_the_program_goes_through_once_and_ends_the_request_whose_code_it_came_from(
    place: str, error: type[BaseException]
) -> None:
    engine = make_native(40)
    before = ask_all(engine)
    bad = ask_raising(engine, place, error())
    after = ask_all(engine)
    with pytest.raises(error):
        run(engine, [bad, *before, *after])
    run(engine, [bad, *before, *after])
    check_empty(engine)
    assert isinstance(bad.error, UnspoolError)
    assert "interrupted" in str(bad.error)
    for flights in (before, after):
        for i, flight in enumerate(flights):
            check_whole(flight, i)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_in_another_thread_than_the_programs_it_is_an_error_like_any_other(
    error: type[BaseException],
) -> None:
    engine = make_native(40)
    bad, others = ask_raising(engine, "combine", error()), ask_all(engine)
    driver = threading.Thread(target=lambda: run(engine, [bad, *others]))
    driver.start()
    driver.join(60)
    assert not driver.is_alive()
    assert isinstance(bad.error, error)
    for i, flight in enumerate(others):
        check_whole(flight, i)


def test_a_strategy_without_branches_is_refused() -> None:
    engine = make_native()
    with pytest.raises(ParameterError, match="begins with a branch or more, not 0"):
        ask(engine, PROMPT, strategy=Lanes(0, 5), max_tokens=5)
    check_empty(engine)


def test_a_reader_that_throws_ends_its_own_request() -> None:
    engine = make_native(40, step_tokens=16)
    before = ask_all(engine)
    pieces: list[int] = []

    def read(first: int, rows: Any) -> None:
        pieces.append(first)
        if first > 20:
            raise CallerError("mine")

    bad = engine.submit(engine.prepare_reading(words(70), read))
    after = ask_all(engine)
    finish(engine, bad, *before, *after)
    with pytest.raises(CallerError):
        bad.generation()
    assert pieces == sorted(set(pieces))
    for flights in (before, after):
        for i, flight in enumerate(flights):
            check_whole(flight, i)


def test_a_reader_reads_every_row_once_though_steps_fail() -> None:
    rows: dict[int, Any] = {}
    engine = make_engine(Flaky({("sample", 2): MemoryError("no"), ("forward", 3): MemoryError("no")}, True))
    others = ask_all(engine)

    def read(first: int, piece: Any) -> None:
        for i, row in enumerate(piece):
            assert first + i not in rows
            rows[first + i] = row.copy()

    token_ids = words(90)
    flight = engine.submit(engine.prepare_reading(token_ids, read))
    finish(engine, flight, *others)
    assert flight.error is None
    assert sorted(rows) == list(range(90))
    for at in (0, 40, 89):
        np.testing.assert_array_equal(rows[at], Alone(native()).row(token_ids[: at + 1]))


PACKAGE = Path(unspool.__file__).parent
TRACED = (str(PACKAGE / "engine"), str(PACKAGE / "cache"))


class Lines:
    """Counts the lines that the engine and its cache run, and interrupts at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


def interrupted(lines: Lines) -> int:
    """Run all kinds of requests with an interrupt at some line; how many steps ended with one."""
    engine = make_native(14, step_tokens=40)
    told: dict[int, int] = {}

    def telling(number: int) -> Callable[[], None]:
        def tell() -> None:
            told[number] = told.get(number, 0) + 1

        return tell

    flights = []
    for kind, (prompt, _) in enumerate(KINDS):
        flights.append(ask(engine, prompt, on_event=telling(kind), **options_of(kind)))
    beam = ask(engine, PROMPT, strategy=Beam(2, 7), max_tokens=7, logprobs=2, ignore_eos=True)
    nan = Source(GUIDED.tracks, nan_after(3))
    bad = ask(engine, PROMPT, source=nan, on_event=telling(100), seed=1, max_tokens=40, ignore_eos=True)
    cancelled = ask(engine, clean(50, 6), max_tokens=40, n=3, on_event=telling(101))
    cancelled_at, steps, interrupts = 4, 0, 0
    while engine.busy:
        steps += 1
        assert steps < 200
        if steps == cancelled_at:
            cancelled.cancelled = UnspoolError("cancelled")
            engine._inbox.append(cancelled)  # as another thread does, while this one is in a step
        try:
            with lines.watching():
                engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    check_empty(engine)
    everybody = [*flights, beam, bad, cancelled]
    assert all(flight.done for flight in everybody)
    hit = [f for f in everybody if f.error is not None and "interrupted" in str(f.error)]
    assert len(hit) <= interrupts
    for kind, flight in enumerate(flights):
        assert told.get(kind)
        if flight not in hit:
            check_whole(flight, kind)
    assert beam in hit or beam.error is None
    if beam not in hit:
        best = enumerate_beam(BEAM_ROWS, 2, 7)
        made = [tuple(candidate.token_ids) for candidate in beam.generation().candidates]
        assert sorted(made) == sorted(tokens for tokens, _ in best)
    assert told.get(100)
    assert isinstance(bad.error, RowError) or bad in hit
    assert told.get(101)
    assert cancelled.error is not None
    return interrupts


@pytest.mark.parametrize("runs", [120, pytest.param(4000, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_line_of_a_step_harms_at_most_the_request_that_was_growing(runs: int) -> None:
    total = Lines()
    assert interrupted(total) == 0
    assert total.count > 5 * runs
    for at in np.random.default_rng(0).integers(1, total.count, runs).tolist():
        assert interrupted(Lines(at)) <= 1, f"at line {at}"


@pytest.mark.parametrize("where", ["forward", "sample"])
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_while_it_computes_harms_nobody(where: str, late: bool) -> None:
    for call in (1, 2, 4, 6):
        engine = make_engine(Flaky({(where, call): KeyboardInterrupt()}, late))
        flights = ask_all(engine)
        with pytest.raises(KeyboardInterrupt):
            run(engine, flights)
        run(engine, flights)
        check_empty(engine)
        for kind, flight in enumerate(flights):
            check_whole(flight, kind)


def test_an_interrupt_in_a_callback_ends_that_request() -> None:
    def interrupting(*_: Any) -> Any:
        raise KeyboardInterrupt

    class Cut(Lanes):
        def grow(self, frontier: Any, branches: Any) -> None:
            raise KeyboardInterrupt

    ways: list[dict[str, Any]] = [{"on_event": interrupting}, {"strategy": Cut(1, 5)}]
    for options in ways:
        engine = make_native()
        before = ask_all(engine)
        bad = ask(engine, PROMPT, max_tokens=5, ignore_eos=True, **options)
        after = ask_all(engine)
        with pytest.raises(KeyboardInterrupt):
            run(engine, [bad])
        run(engine, [*before, *after])
        check_empty(engine)
        assert bad.done
        for flights in (before, after):
            for i, flight in enumerate(flights):
                check_whole(flight, i)


def test_who_waits_beside_an_interrupted_driver_gets_what_it_waits_for() -> None:
    backend = Flaky({("forward", 6): KeyboardInterrupt()}, late=False)
    engine = make_engine(backend)
    results: dict[int, Any] = {}

    def wait(kind: int) -> None:
        prompt, _ = KINDS[kind]
        flight = ask(engine, prompt, **options_of(kind))
        while True:
            try:
                engine.drive(lambda: flight.done)
                break
            except KeyboardInterrupt:
                pass
        results[kind] = flight.generation().candidates

    threads = [threading.Thread(target=wait, args=(kind,)) for kind in range(len(KINDS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert [results[kind] for kind in range(len(KINDS))] == EXPECTED
    run(engine, [])
    check_empty(engine)


def test_a_request_that_cannot_begin_ends_alone() -> None:
    """A detokenizer that cannot be made is its request's fault alone."""
    engine = make_native()
    good = engine.new_detokenizer

    def refusing(skip: bool) -> Any:
        if not skip:
            raise CallerError("no such")
        return good(skip)

    engine.new_detokenizer = refusing
    flights = ask_all(engine)
    bad = ask(engine, PROMPT, max_tokens=3, skip_special_tokens=False)
    finish(engine, bad, *flights)
    assert isinstance(bad.error, CallerError)
    for kind, flight in enumerate(flights):
        check_whole(flight, kind)
