"""Threads, interrupts, garbage collections, forks: whatever goes on around an LLM, its results stay."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unspool import LLM, AsyncLLM, Chunk, ContextLengthError, ParameterError, UnspoolError
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.params import SamplingParams, Settings

PROMPTS = ["the inner other", "another", "x", "the inner and the other of them and the rest"]
LONG: Settings = {"max_tokens": 400, "ignore_eos": True, "seed": 1}


@pytest.fixture
def own(tiny_path: Path) -> Iterator[LLM]:
    """An LLM of this test alone, whose cache holds one sequence of its whole context."""
    with LLM(tiny_path, threads=1, cache_tokens=512) as made:
        yield made


def at_rest(llm: LLM) -> bool:
    now = llm.stats()
    return (now.requests, now.running, now.waiting, now.cache.held) == (0, 0, 0, 0)


def settings_of(index: int) -> Settings:
    return {
        "seed": index,
        "max_tokens": 1 + index % 19,
        "n": 1 + index % 3,
        "stop": ["e"] if index % 4 else [],
    }


def ask(llm: LLM, index: int) -> Any:
    """The answer to one of many different questions."""
    prompt, settings = PROMPTS[index % 4], settings_of(index)
    match index % 6:
        case 0:
            return llm.logits(prompt * 3).tobytes()
        case 1:
            return llm.score(prompt * 3).logprobs
        case 2:
            chunks = list(llm.stream(prompt, **settings))
            assert chunks[-1].generation is not None
            return chunks[-1].generation.candidates
        case 3:
            return [made.candidates for made in llm.generate([prompt, *PROMPTS], **settings)]
        case 4:
            opened = llm.stream(prompt, **LONG)
            first = next(opened)
            opened.close()
            return first
        case _:
            return llm.generate(prompt, **settings).candidates


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run all of them at once; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_threads_that_ask_for_all_kinds_of_things_get_what_they_would_alone(llm: LLM, own: LLM) -> None:
    expected = {index: ask(llm, index) for index in range(96)}
    made: dict[int, Any] = {}

    def work(first: int) -> None:
        for index in range(first, 96, 8):
            made[index] = ask(own, index)

    in_threads([lambda first=first: work(first) for first in range(8)])  # type: ignore[misc]
    assert made == expected
    assert at_rest(own)


def test_stats_may_be_asked_for_at_any_time_and_hold_nobody_up(llm: LLM, own: LLM) -> None:
    expected = [ask(llm, index) for index in range(36)]
    over = threading.Event()
    seen = 0

    def watch() -> None:
        nonlocal seen
        while not over.is_set():
            now = own.stats()
            seen += 1
            assert 0 <= now.cache.filled <= now.cache.allocated_slots
            assert now.cache.held + now.cache.kept <= now.cache.blocks
            assert (now.cache.held == 0) == (now.running == 0)
            assert now.running <= 3 * 5 * 2
            assert now.prompt_tokens >= 0 <= now.generated_tokens

    def work(first: int) -> None:
        assert [ask(own, index) for index in range(first, 36, 2)] == expected[first::2]

    def all_work() -> None:
        try:
            in_threads([lambda: work(0), lambda: work(1)])
        finally:
            over.set()

    in_threads([watch, watch, watch, all_work])
    assert seen > 0
    assert at_rest(own)


def test_a_thread_whose_request_is_done_returns_although_another_goes_on(llm: LLM, own: LLM) -> None:
    engine = own.engine
    endless = engine.submit(engine.prepare([5, 6, 7], SamplingParams(**LONG)))
    enough = threading.Event()

    def drive() -> None:
        engine.drive(lambda: endless.done or enough.is_set())

    driver = threading.Thread(target=drive)
    driver.start()
    made = [own.generate(PROMPTS[0], seed=seed, max_tokens=2) for seed in range(5)]
    assert not endless.done
    enough.set()
    driver.join(60)
    engine.cancel(endless)
    for seed, each in enumerate(made):
        assert each.candidates == llm.generate(PROMPTS[0], seed=seed, max_tokens=2).candidates
    assert at_rest(own)


def test_a_driver_hands_its_turn_to_those_who_still_wait(llm: LLM, own: LLM) -> None:
    waiting, made = threading.Event(), []

    def wait_longer() -> None:
        flight = own.engine.submit(own.engine.prepare([5, 6, 7], SamplingParams(seed=1, max_tokens=90)))
        waiting.set()
        own.engine.drive(lambda: flight.done)
        made.append(flight.generation().candidates)

    follower = threading.Thread(target=wait_longer)
    chunks = own.stream(PROMPTS[3], **LONG)
    next(chunks)
    follower.start()
    waiting.wait(60)
    chunks.close()
    follower.join(60)
    assert made == [llm.generate([5, 6, 7], seed=1, max_tokens=90).candidates]
    assert at_rest(own)


def test_a_callback_that_asks_its_own_llm_is_told_and_waits_for_nothing(llm: LLM, own: LLM) -> None:
    engine = own.engine
    asked: list[BaseException] = []

    def ask_again() -> None:
        for question in (
            lambda: own.generate("x", max_tokens=2),
            lambda: next(own.stream("x", max_tokens=2)),
            lambda: own.score("the inner"),
            lambda: engine.drive(lambda: False),
        ):
            try:
                question()
            except UnspoolError as error:
                asked.append(error)
        own.stats()

    prompt, params = [5, 6, 7], SamplingParams(seed=1, max_tokens=5)
    told = engine.submit(engine.prepare(prompt, params), streaming=True, on_event=ask_again)
    engine.drive(lambda: told.done)
    assert told.generation().candidates == llm.generate(prompt, params).candidates
    by_events = len(asked)
    assert by_events >= 4 * 5

    read = engine.submit(engine.prepare_reading(prompt, lambda *_: ask_again()))
    engine.drive(lambda: read.done)
    assert read.error is None
    assert len(asked) == by_events + 4

    other = engine.submit(engine.prepare(prompt, params))
    engine.drive(lambda: other.done, ask_again)
    assert other.generation().candidates == llm.generate(prompt, params).candidates

    def read_again(*_: Any) -> None:
        own.score("x")

    raising = engine.submit(engine.prepare_reading(prompt, read_again))
    engine.drive(lambda: raising.done)
    assert isinstance(raising.error, UnspoolError)
    assert all("within one of its own callbacks" in str(error) for error in [*asked, raising.error])
    engine.drive(lambda: not engine.busy)
    assert at_rest(own)


def test_what_fails_after_a_step_is_raised_and_the_llm_goes_on(llm: LLM, own: LLM) -> None:
    engine = own.engine
    flight = engine.submit(engine.prepare([5, 6, 7], SamplingParams(**LONG)))

    def each_step() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.drive(lambda: flight.done, each_step)
    engine.cancel(flight)
    assert at_rest(own)
    assert (
        own.generate("x", seed=1, max_tokens=9).candidates
        == llm.generate("x", seed=1, max_tokens=9).candidates
    )


@pytest.mark.parametrize("where", ["event", "reader", "step", "begin"])
def test_a_stream_collected_in_the_middle_of_anothers_step_frees_its_cache(
    llm: LLM, own: LLM, where: str
) -> None:
    engine = own.engine
    chunks = own.stream(PROMPTS[3], **LONG)
    next(chunks)
    ring: list[Any] = [chunks]
    ring.append(ring)
    del chunks, ring

    prompt, params = [5, 6, 7], SamplingParams(seed=1, max_tokens=5)
    held = own.stats().cache.held
    assert held > 0

    def collect(*_: Any) -> None:
        gc.collect()

    if where == "reader":
        flight = engine.submit(engine.prepare_reading(prompt, collect))
    else:
        on_event = collect if where == "event" else None
        flight = engine.submit(engine.prepare(prompt, params), streaming=True, on_event=on_event)
    if where == "begin":
        engine.cancel(engine.submit(engine.prepare(prompt, params), on_event=collect))
    engine.drive(lambda: flight.done, collect if where == "step" else None)
    if where != "reader":
        assert flight.generation().candidates == llm.generate(prompt, params).candidates
    engine.drive(lambda: not engine.busy)
    assert at_rest(own)


def test_streams_abandoned_by_many_threads_leave_nothing(own: LLM) -> None:
    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(15):
            chunks = own.stream(PROMPTS[seed % 4], SamplingParams(n=2), **LONG)
            for _ in range(chance.randrange(1, 4)):
                next(chunks)
            if chance.random() < 0.5:
                ring: list[Any] = [chunks]
                ring.append(ring)
                del ring
            del chunks
            if chance.random() < 0.2:
                gc.collect()

    in_threads([lambda seed=seed: work(seed) for seed in range(6)])  # type: ignore[misc]
    gc.collect()
    own.generate("x", max_tokens=1)
    assert at_rest(own)
    assert own.stats().cancelled == 6 * 15


class Overtaken(deque[Chunk]):
    """An outbox that, when it is found empty, another thread fills before the finder goes on."""

    def __init__(self, engine: Engine, flight: Flight) -> None:
        super().__init__()
        self.engine, self.flight, self.read = engine, flight, 0

    def popleft(self) -> Chunk:
        self.read += 1
        return super().popleft()

    def __bool__(self) -> bool:
        found = len(self) > 0
        if self.read and not found and not self.flight.done:
            in_threads([lambda: self.engine.drive(lambda: self.flight.done)])
        return found


def test_a_stream_whose_steps_another_thread_takes_loses_nothing(
    llm: LLM, own: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = own.engine.submit

    def submitted(*args: Any, **options: Any) -> Flight:
        flight = submit(*args, **options)
        flight.outbox = Overtaken(own.engine, flight)
        return flight

    monkeypatch.setattr(own.engine, "submit", submitted)
    asked: Settings = {"max_tokens": 30, "ignore_eos": True, "seed": 1, "n": 2}
    chunks = list(own.stream(PROMPTS[0], **asked))
    expected = llm.generate(PROMPTS[0], **asked).candidates
    assert chunks[-1].generation is not None
    assert chunks[-1].generation.candidates == expected
    for candidate in expected:
        mine = [chunk for chunk in chunks if chunk.index == candidate.index]
        assert "".join(chunk.text for chunk in mine) == candidate.text
        assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens


def test_what_is_too_long_to_read_is_refused_before_anything_is_allocated(own: LLM) -> None:
    token_ids = [5] * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ContextLengthError, match="100000 tokens"):
            own.logits(token_ids)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000  # the logits would have taken ten times that


@pytest.mark.parametrize("empty", [[], (), np.empty(0, np.int64)])
def test_an_empty_prompt_is_called_by_its_name(own: LLM, empty: Any) -> None:
    with pytest.raises(ParameterError, match="prompt 1 of the list: the prompt is empty"):
        own.generate([[5], empty], max_tokens=2)
    for ask_of in (own.logits, own.score, own.next_token):
        with pytest.raises(ParameterError, match="the prompt is empty"):
            ask_of(empty)


@pytest.mark.parametrize("token", [2**31, 2**63 - 1, 2**63, 2**64, 10**30, -1, -(2**63) - 1])
def test_an_id_out_of_range_is_named_however_large_it_is(own: LLM, token: int) -> None:
    for ask_of in (own.generate, own.logits, own.score):
        with pytest.raises(ParameterError, match=rf"token id {token} \(at 1\); the model's ids are 0 to"):
            ask_of([5, token])


def child(code: str, *arguments: Any) -> str:
    """What a Python process prints that runs ``code`` and must end well."""
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


INTERRUPTED = """
import signal, sys
from unspool import LLM

def interrupt(*_):
    raise KeyboardInterrupt

rounds = int(sys.argv[2])
llm = LLM(sys.argv[1], threads=2, cache_tokens=512)
prompts = ["the inner other", "another", "x"] * 400
asked = dict(seed=1, max_tokens=30, n=2)
expected = llm.generate("the inner", **asked).candidates

signal.signal(signal.SIGALRM, interrupt)
for round in range(rounds):
    try:  # wherever it is by then: taking requests in, or some step later
        signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.05 * round)
        llm.generate(prompts, max_tokens=400, ignore_eos=True)
        print("was not interrupted")
    except KeyboardInterrupt:
        pass
    now = llm.stats()
    assert (now.requests, now.running, now.cache.held) == (0, 0, 0), now
    assert llm.generate("the inner", **asked).candidates == expected, round
print("went on", rounds)
"""


def test_an_interrupted_llm_says_so_at_once_and_then_goes_on(tiny_path: Path) -> None:
    assert child(INTERRUPTED, tiny_path, 8) == "went on 8\n"


FORKED = """
import asyncio, os, sys, threading
from unspool import LLM, AsyncLLM, UnspoolError
from unspool.params import SamplingParams

way = sys.argv[2]
llm = LLM(sys.argv[1], threads=2)
shared = AsyncLLM(llm)
expected = llm.generate("the inner", seed=1, max_tokens=30).candidates
long = dict(max_tokens=450, ignore_eos=True)
opened = llm.stream("the", **long)
next(opened)

async def first(llm):
    async for chunk in llm.generate("the", max_tokens=3):
        return chunk

def uses():
    yield lambda: llm.generate("the")
    yield lambda: llm.generate([])
    yield lambda: llm.generate(["the", "x"])
    yield lambda: next(llm.stream("the"))
    yield lambda: llm.chat("the")
    yield lambda: llm.logits("the")
    yield lambda: llm.score("the")
    if way != "driven":  # the other thread may have brought it to its end, which may be read
        yield lambda: list(opened)
    yield lambda: llm.stats()
    yield lambda: asyncio.run(first(shared))
    yield lambda: shared.stats()

def in_child():
    for use in uses():
        try:
            use()
        except UnspoolError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("was not refused")
    opened.close()
    shared.close()
    llm.close()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where nanobind tells what the parent's threads still held
    if way == "asynchronous":  # the parent's event loop is not the child's to close
        os._exit(7)
    sys.exit(7)

def fork():
    pid = os.fork()
    if pid == 0:
        in_child()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def run(count):
    asyncio.get_running_loop().slow_callback_duration = 60  # to fork takes its time, which is no warning
    async def whole():
        events = shared.generate("the inner", seed=1, max_tokens=30)
        return [chunk async for chunk in events][-1].generation.candidates
    tasks = [asyncio.ensure_future(whole()) for _ in range(count)]
    await asyncio.sleep(0)
    status = fork() if way == "asynchronous" else 7
    return status, await asyncio.gather(*tasks)

if way == "idle":
    assert fork() == 7
if way == "driven":  # while another thread is in a step
    other = threading.Thread(target=lambda: llm.generate(["x"] * 3, **long))
    other.start()
    statuses = [fork() for _ in range(5)]
    assert statuses == [7] * 5, statuses
    other.join()
if way == "locked":  # while another thread holds the engine's lock
    held, release = threading.Event(), threading.Event()
    flight = llm.engine.submit(
        llm.engine.prepare([5], SamplingParams()), on_event=lambda: (held.set(), release.wait())
    )
    other = threading.Thread(target=lambda: llm.engine.cancel(flight))
    other.start()
    held.wait()
    assert fork() == 7
    release.set()
    other.join()
status, made = asyncio.run(run(8))
assert status == 7
assert made == [expected] * 8
assert llm.generate("the inner", seed=1, max_tokens=30).candidates == expected
assert len(list(opened)) > 0
print("went on")
"""


@pytest.mark.parametrize("way", ["idle", "driven", "locked", "asynchronous"])
def test_a_forked_child_is_told_and_the_parent_goes_on(tiny_path: Path, way: str) -> None:
    assert child(FORKED, tiny_path, way) == "went on\n"


SPAWNED = """
import multiprocessing, sys
from unspool import LLM

def generate(path, seed):
    with LLM(path, threads=1) as llm:
        return llm.generate("the inner", seed=seed, max_tokens=20).candidates

if __name__ == "__main__":
    path = sys.argv[1]
    with LLM(path, threads=2) as llm:
        expected = [llm.generate("the inner", seed=seed, max_tokens=20).candidates for seed in (1, 2)]
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            made = pool.starmap(generate, [(path, 1), (path, 2)])
    assert made == expected
    print("same")
"""


def test_spawned_processes_give_the_same(tiny_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    command = [sys.executable, str(script), str(tiny_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_threads_and_an_event_loops_thread_may_leave_in_any_order(tiny_path: Path) -> None:
    before = threading.active_count()
    for _ in range(5):
        llm = LLM(tiny_path, threads=1)
        shared = AsyncLLM(llm)

        def asks(llm: LLM = llm) -> None:
            with suppress(UnspoolError):  # closed before it asks
                ask(llm, 5)

        in_threads([asks, shared.close, llm.close])
        with pytest.raises(UnspoolError, match="closed"):
            llm.generate("x")
    assert threading.active_count() == before


LEFT_BEHIND = """
import atexit, sys, threading, time
from unspool import LLM

atexit.register(lambda: print(len(llm.generate("x", seed=1, max_tokens=4).tokens), "at exit", flush=True))
llm = LLM(sys.argv[1], threads=2)
asks = threading.Event()

def work():
    while True:
        llm.generate("the inner", max_tokens=300, ignore_eos=True)
        asks.set()

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
asks.wait()
"""


def test_a_program_may_end_while_threads_that_it_leaves_behind_generate(tiny_path: Path) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", LEFT_BEHIND, str(tiny_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "4 at exit\n"), done.stderr


INTERRUPTED_BESIDE = """
import random, signal, sys, threading, time
from unspool import LLM, UnspoolError

def interrupt(*_):
    raise KeyboardInterrupt

llm = LLM(sys.argv[1], threads=1, cache_tokens=160)
asked = dict(seed=1, max_tokens=20, ignore_eos=True)
expected = llm.generate("the inner", **asked).candidates
over, made = threading.Event(), [0, 0]

def work(kind):
    while not over.is_set():
        try:
            assert llm.generate("the inner", **asked).candidates == expected
        except UnspoolError as error:  # its own code was running, in the main thread, just then
            assert "interrupted" in str(error), error
        made[kind] += 1

threads = [threading.Thread(target=work, args=(kind,), daemon=True) for kind in range(2)]
for thread in threads:
    thread.start()
signal.signal(signal.SIGALRM, interrupt)
chance, end, interrupts = random.Random(1), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 0.003 * chance.random())
        assert llm.generate("the inner", **asked).candidates == expected
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
assert interrupts > 50, interrupts
before = list(made)
while any(now < then + 2 for now, then in zip(made, before)):
    time.sleep(0.01)
over.set()
for thread in threads:
    thread.join()
assert llm.generate("the inner", **asked).candidates == expected
print("went on")
"""


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_interrupts_of_the_main_thread_hold_no_other_thread_up(tiny_path: Path, seconds: float) -> None:
    assert child(INTERRUPTED_BESIDE, tiny_path, seconds) == "went on\n"
