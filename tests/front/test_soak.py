"""A soak: thousands of short requests of all kinds from threads and tasks, in a cache too small for them.

Nothing is left at the end, nothing was lost or answered twice, and each answer is what it would be alone.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from unspool import LLM, AsyncLLM, UnspoolError
from unspool.engine.flight import Flight
from unspool.params import SamplingParams, Settings
from unspool.results import Candidate, Chunk, Generation

CACHE_BLOCKS = 12
LONGEST_PROMPT, MOST_TOKENS = 60, 24
KEPT_SHARE = 0.05
"""Of the answers, how many are compared with those of the same requests alone."""
MOST_GROWTH = 6 << 20
"""Bytes that the process may grow by after it has warmed up, by its allocator's ways; 400 a request."""

Question = tuple[list[int], SamplingParams]


def question(chance: random.Random) -> Question:
    """A short request; many begin alike, and some ask for what another has asked."""
    beginning = [40 + chance.randrange(3)] * chance.choice([0, 0, 16, 20, 33])
    rest = [chance.randrange(3, 266) for _ in range(chance.randrange(1, LONGEST_PROMPT - len(beginning)))]
    asked: Settings = {
        "seed": chance.randrange(50),
        "n": chance.choice([1, 1, 1, 2, 4]),
        "max_tokens": chance.randrange(1, MOST_TOKENS),
        "priority": chance.choice([0, 0, 0, 1, -1]),
        "cache_salt": chance.choice([None, None, "a", "b"]),
        "logprobs": chance.choice([0, 0, 3]),
        "ignore_eos": chance.random() < 0.5,
    }
    if chance.random() < 0.3:
        asked["stop"] = chance.choice([["e"], ["a", "th"], ["1", "2", "3"]])
    if chance.random() < 0.3:
        asked["temperature"] = 0.0
    elif chance.random() < 0.5:
        asked["top_p"], asked["top_k"] = 0.9, 40
    if chance.random() < 0.2:
        asked["repetition_penalty"], asked["penalty_scope"] = 1.2, chance.choice([1, 5, 100])
    return beginning + rest, SamplingParams(**asked)


class Soak:
    """The requests of one run, and how each ended for who made it."""

    def __init__(self, llm: LLM, shared: AsyncLLM, count: int) -> None:
        self.llm = llm
        self.shared = shared
        self.count = count
        self.ends: Counter[str] = Counter()
        self.kept: list[tuple[Question, list[Candidate]]] = []
        self.errors: list[BaseException] = []
        self._numbers = itertools.count()

    def numbers(self) -> Iterator[int]:
        """Numbers of requests that are still to be made; no two callers get the same."""
        while (number := next(self._numbers)) < self.count:
            yield number

    def keep(self, chance: random.Random, asked: Question, generation: Generation) -> None:
        self.ends["finished"] += 1
        if chance.random() < KEPT_SHARE:
            self.kept.append((asked, generation.candidates))

    def keep_chunks(self, chance: random.Random, asked: Question, chunks: list[Chunk]) -> None:
        generation = chunks[-1].generation
        assert generation is not None
        for candidate in generation.candidates:
            mine = [chunk for chunk in chunks if chunk.index == candidate.index]
            assert "".join(chunk.text for chunk in mine) == candidate.text
            assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens
        self.keep(chance, asked, generation)

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def work(self) -> None:
        """Make requests in this thread, one way or another, until all are made."""
        for number in self.numbers():
            chance = random.Random(number)
            chance.choice([self.generate, self.stream, self.cancel, self.fail])(chance)

    def generate(self, chance: random.Random) -> None:
        asked = question(chance)
        self.keep(chance, asked, self.llm.generate(*asked))

    def stream(self, chance: random.Random) -> None:
        asked = question(chance)
        chunks = self.llm.stream(*asked)
        leave = chance.choice([None, None, 1, 3])
        if leave is None:
            self.keep_chunks(chance, asked, list(chunks))
            return
        taken = list(itertools.islice(chunks, leave))
        chunks.close()
        self.ends["finished" if taken[-1].generation is not None else "left"] += 1

    def cancel(self, chance: random.Random) -> None:
        """Cancel a request before it starts, while it waits or runs, or after its end."""
        asked = question(chance)
        engine = self.llm.engine
        answers = []
        flight = engine.submit(engine.prepare(*asked), on_event=lambda: answers.append(1))
        steps = chance.choice([0, 1, 2, 10, None])

        def wanted() -> bool:
            nonlocal steps
            steps = None if steps is None else steps - 1
            return flight.done or (steps is not None and steps < 0)

        engine.drive(wanted)
        engine.cancel(flight)
        engine.drive(lambda: flight.done)
        engine.cancel(flight)
        assert len(answers) == 1
        if flight.error is None:
            self.keep(chance, asked, flight.generation())
        else:
            assert isinstance(flight.error, UnspoolError)
            assert "was cancelled" in str(flight.error)
            self.ends["cancelled"] += 1

    def fail(self, chance: random.Random) -> None:
        """Let a request's own callback fail, now or then."""
        engine = self.llm.engine
        after = chance.randrange(4)
        calls = 0

        def on_event() -> None:
            nonlocal calls
            calls += 1
            if calls > after:
                raise ZeroDivisionError

        asked = question(chance)
        flight = engine.submit(engine.prepare(*asked), streaming=True, on_event=on_event)
        engine.drive(lambda: flight.done)
        if flight.error is None:
            self.keep_chunks(chance, asked, list(flight.outbox))
        else:
            assert isinstance(flight.error, ZeroDivisionError)
            self.ends["failed"] += 1

    async def task(self) -> None:
        """Make requests in this task until all are made."""
        for number in self.numbers():
            chance = random.Random(number)
            asked = question(chance)
            events = self.shared.generate(*asked)
            way = chance.choice(["read", "read", "leave", "cancel", "timeout"])
            if way == "read":
                self.keep_chunks(chance, asked, [chunk async for chunk in events])
            elif way == "leave":
                await self.leave(events, chance.randrange(4))
            else:
                reader = asyncio.ensure_future(self.read(events))
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                reader.cancel()
                try:
                    self.keep_chunks(chance, asked, await reader)
                except asyncio.CancelledError:
                    self.ends["left or never made"] += 1

    async def read(self, events: AsyncGenerator[Chunk, None]) -> list[Chunk]:
        return [chunk async for chunk in events]

    async def leave(self, events: AsyncGenerator[Chunk, None], after: int) -> None:
        taken: list[Chunk] = []
        async with aclosing(events):
            while len(taken) < after and not (taken and taken[-1].generation):
                taken.append(await anext(events))
        if not taken:
            self.ends["never made"] += 1
        else:
            self.ends["finished" if taken[-1].generation is not None else "left"] += 1

    def loop(self) -> None:
        async def main() -> None:
            await asyncio.gather(*(self.task() for _ in range(12)))

        asyncio.run(main())

    def run(self) -> None:
        """Make all requests, and wait for them."""
        works = [self.work] * 4 + [self.loop] * 2
        threads = [threading.Thread(target=self.guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        self.llm.engine.drive(lambda: not self.llm.engine.busy)  # what was left last


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError


def flights_alive() -> int:
    gc.collect()
    return sum(type(each) is Flight for each in gc.get_objects())


def check_rest(llm: LLM) -> None:
    """Nothing runs or waits, and every block is free."""
    engine = llm.engine
    now = engine.stats()
    assert (now.running, now.waiting, now.requests) == (0, 0, 0)
    assert engine.scheduler.idle
    assert not engine.busy
    pool, prefixes = engine.main.pool, engine.main.prefixes
    assert pool.num_free == pool.num_blocks
    assert all(pool.references(block) == 0 for block in range(pool.num_blocks))
    assert sum(pool.holders) == pool.num_kept == len(prefixes) == now.cache.kept
    assert not prefixes._pending
    assert not prefixes._begun
    assert not engine.main.copies


def soak(llm: LLM, shared: AsyncLLM, count: int) -> Soak:
    """Run ``count`` requests, and check what must hold at the end."""
    before = llm.stats()
    made = Soak(llm, shared, count)
    made.run()
    check_rest(llm)
    now = llm.stats()
    finished, cancelled, failed = (
        getattr(now, name) - getattr(before, name) for name in ("finished", "cancelled", "failed")
    )
    ends = made.ends
    assert sum(ends.values()) == count
    assert failed == ends["failed"]
    assert ends["finished"] <= finished  # those that were left at their last token have ended by themselves
    assert finished + cancelled + failed >= count - ends["never made"] - ends["left or never made"]
    assert finished + cancelled + failed <= count - ends["never made"]
    assert now.preemptions - before.preemptions > count / 50
    return made


def check_alone(kept: list[tuple[Question, list[Candidate]]], alone: LLM) -> None:
    assert kept
    for (prompt, params), candidates in kept:
        assert alone.generate(prompt, params).candidates == candidates


@pytest.fixture
def small(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, threads=1, cache_tokens=16 * CACHE_BLOCKS, step_tokens=48) as made:
        yield made


def test_many_short_requests_leave_nothing_and_each_is_what_it_would_be_alone(llm: LLM, small: LLM) -> None:
    threads = threading.active_count()
    shared = AsyncLLM(small)
    made = soak(small, shared, 1500)
    shared.close()
    assert threading.active_count() == threads
    check_alone(made.kept, llm)


@pytest.mark.slow
def test_twenty_thousand_requests_leave_nothing_and_memory_stays_flat(llm: LLM, small: LLM) -> None:
    threads = threading.active_count()
    shared = AsyncLLM(small)
    check_alone(soak(small, shared, 4000).kept, llm)
    warm, alive = resident_bytes(), flights_alive()
    for _ in range(4):
        check_alone(soak(small, shared, 4000).kept, llm)
    grown = resident_bytes() - warm
    assert flights_alive() <= max(alive, 64)
    assert grown < MOST_GROWTH, f"{grown / 2**20:.1f} MiB"
    shared.close()
    assert threading.active_count() == threads


def test_the_soak_makes_requests_of_every_kind() -> None:
    asked = [question(random.Random(number))[1] for number in range(500)]
    kinds: dict[str, set[Any]] = {
        name: {getattr(params, name) for params in asked} for name in ("n", "priority", "cache_salt", "stop")
    }
    assert kinds["n"] == {1, 2, 4}
    assert kinds["priority"] == {-1, 0, 1}
    assert kinds["cache_salt"] == {None, "a", "b"}
    assert len(kinds["stop"]) == 4
