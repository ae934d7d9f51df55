"""The front door for event loops: many tasks on one thread, each alone with its result, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from unspool import LLM, AsyncLLM, ContextLengthError, ParameterError, UnspoolError
from unspool.backend.base import StepBatch, StepOutput
from unspool.backend.cpu import CpuBackend
from unspool.errors import BackendError
from unspool.model.loader import load
from unspool.params import Settings
from unspool.results import Candidate, Chunk, Generation

T = TypeVar("T")

PROMPTS = ["the inner other", "another", "x", "the inner and the other of them and the rest"]
LONG: Settings = {"max_tokens": 450, "ignore_eos": True, "seed": 1}
"""A request that is under way for as long as a test needs it."""


class Paced(CpuBackend):
    """Computes steps while it is let: ``allowed`` more of them, or any number."""

    allowed: int | None = None
    failing = False

    def forward(self, step: StepBatch) -> StepOutput:
        while self.allowed == 0:
            time.sleep(0.0005)
        if self.allowed is not None:
            self.allowed -= 1
        if self.failing:
            raise BackendError("no more")
        return super().forward(step)


def paced(path: Path, **options: Any) -> tuple[LLM, Paced]:
    loaded = load(path)
    backend = Paced(loaded.spec, loaded.tensors, threads=1)
    return LLM.with_backend(loaded, backend, **options), backend


@pytest.fixture
def shared(tiny_path: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(tiny_path, threads=1, cache_tokens=1024)
    yield made
    made.close()


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 60))


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "unspool-engine"]


def at_rest(llm: LLM | AsyncLLM) -> bool:
    now = llm.stats()
    return (now.requests, now.running, now.waiting, now.cache.held) == (0, 0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def joined(events: AsyncGenerator[Chunk, None]) -> list[Candidate]:
    """The candidates that the pieces make, which the whole result at the end must equal."""
    chunks = [chunk async for chunk in events]
    assert all(chunk.generation is None for chunk in chunks[:-1])
    generation = chunks[-1].generation
    assert generation is not None
    for candidate in generation.candidates:
        mine = [chunk for chunk in chunks if chunk.index == candidate.index]
        assert "".join(map(str, mine)) == candidate.text
        assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens
        ends = [(c.finish_reason, c.stop_reason) for c in mine if c.finish_reason is not None]
        assert ends == [(candidate.finish_reason, candidate.stop_reason)]
    return generation.candidates


def mixed_settings(index: int) -> Settings:
    settings: Settings = {"seed": index, "max_tokens": 1 + index % 23, "n": 1 + index % 3}
    if index % 4 == 0:
        settings["temperature"] = 0.0
    if index % 5 == 0:
        settings.update(stop=["e", "th"], logprobs=2)
    if index % 7 == 0:
        settings.update(repetition_penalty=1.3, penalty_scope="all", priority=index % 3)
    return settings


def test_many_tasks_share_one_thread_and_each_gets_what_an_llm_gives(llm: LLM, shared: AsyncLLM) -> None:
    most = 0

    async def task(index: int) -> list[Candidate]:
        nonlocal most
        made = await joined(shared.generate(PROMPTS[index % 4], **mixed_settings(index)))
        most = max(most, len(engine_threads()))
        return made

    async def main() -> list[list[Candidate]]:
        return await asyncio.gather(*(task(index) for index in range(60)))

    together = run(main())
    assert most == 1
    for index, made in enumerate(together):
        assert made == llm.generate(PROMPTS[index % 4], **mixed_settings(index)).candidates
    assert at_rest(shared)
    assert shared.stats().finished == 60


def test_a_chat_is_that_of_an_llm(llm: LLM, shared: AsyncLLM) -> None:
    messages = [{"role": "user", "content": "hi" * 40}, {"role": "assistant", "content": "the " * 60}] * 4
    messages = [*messages, {"role": "user", "content": "now"}]

    async def main() -> Generation:
        chunks = [chunk async for chunk in shared.chat(messages, seed=3, max_tokens=9)]
        assert chunks[-1].generation is not None
        return chunks[-1].generation

    made, expected = run(main()), llm.chat(messages, seed=3, max_tokens=9)
    assert made.candidates == expected.candidates
    assert made.dropped_messages == expected.dropped_messages > 0


def test_what_cannot_be_honoured_is_refused_at_the_call(shared: AsyncLLM) -> None:
    with pytest.raises(ParameterError, match="did you mean top_k"):
        shared.generate("x", topk=3)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="empty"):
        shared.generate("")
    with pytest.raises(ParameterError, match="one prompt here"):
        shared.generate(["x", "y"])  # type: ignore[list-item]
    with pytest.raises(ContextLengthError, match="max_tokens=600"):
        shared.generate("x", max_tokens=600)
    with pytest.raises(ParameterError, match="temperature"):
        shared.chat("x", temperature=-1.0)
    with pytest.raises(ParameterError, match="an LLM comes with its threads"):
        AsyncLLM(shared.llm, threads=2)
    assert engine_threads() == []


def test_a_requests_error_reaches_its_own_task_alone(llm: LLM, tiny_path: Path) -> None:
    slow, backend = paced(tiny_path)

    async def main() -> list[Any]:
        async with AsyncLLM(slow) as shared:
            alone = await asyncio.gather(joined(shared.generate("x", **LONG)), fail(), return_exceptions=True)
            backend.failing = False
            return [*alone, await joined(shared.generate("x", seed=1, max_tokens=9))]

    async def fail() -> None:
        await asyncio.sleep(0)
        backend.failing = True

    failed, _, after = run(main())
    assert isinstance(failed, BackendError)
    assert after == llm.generate("x", seed=1, max_tokens=9).candidates

    async def both() -> list[Any]:
        async with AsyncLLM(slow) as shared:
            bad = shared.llm.prepare("x", shared_params())
            object.__setattr__(bad, "strategy", Refusing(1))
            events = shared._thread.events(bad, shared)
            good = [joined(shared.generate(p, seed=2, max_tokens=20)) for p in PROMPTS]
            return await asyncio.gather(joined(events), *good, return_exceptions=True)

    bad, *good = run(both())
    assert isinstance(bad, ZeroDivisionError)
    assert good == [llm.generate(p, seed=2, max_tokens=20).candidates for p in PROMPTS]
