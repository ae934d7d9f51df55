"""The front door for event loops: many tasks on one thread, each with its own result, and nothing left."""

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
from unspool.params import SamplingParams, Settings
from unspool.results import Candidate, Chunk, Generation

T = TypeVar("T")

PROMPTS = ["the inner other", "another", "x", "the inner and the other of them and the rest"]
LONG: Settings = {"max_tokens": 450, "ignore_eos": True, "seed": 1}
"""A request that is under way for as long as a test needs it."""


class Paced(CpuBackend):
    """Computes steps while it is let: ``allowed`` more of them, or any number."""

    allowed: int | None = None
    poison = -1
    """A step with this token fails."""
    failure: BaseException = BackendError("no")

    def forward(self, step: StepBatch) -> StepOutput:
        while self.allowed == 0:
            time.sleep(0.0005)
        if self.allowed is not None:
            self.allowed -= 1
        if self.poison in step.tokens:
            raise self.failure
        return super().forward(step)


def paced(path: Path, **options: Any) -> tuple[LLM, Paced]:
    loaded = load(path)
    backend = Paced(loaded.spec, loaded.tensors, threads=1)
    return LLM.with_backend(loaded, backend, **options), backend


@pytest.fixture
def shared(tiny_path: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(tiny_path, threads=1, cache_tokens=1024, chunk_seconds=0)
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
        settings["stop"], settings["logprobs"] = ["e", "th"], 2
    if index % 7 == 0:
        settings["repetition_penalty"], settings["penalty_scope"] = 1.3, "all"
        settings["priority"] = index % 3
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
    [backend.poison] = slow.tokenizer.encode("~")

    async def main() -> list[Any]:
        async with AsyncLLM(slow) as shared:
            tasks = [joined(shared.generate(p, seed=2, max_tokens=20)) for p in ["x~", *PROMPTS, "~"]]
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, *good, last = run(main())
    assert isinstance(first, BackendError)
    assert isinstance(last, BackendError)
    assert good == [llm.generate(p, seed=2, max_tokens=20).candidates for p in PROMPTS]
    assert slow.stats().failed == 2
    assert at_rest(slow)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_what_a_tasks_own_rule_raises_reaches_no_other_task(
    llm: LLM, shared: AsyncLLM, error: type[BaseException]
) -> None:
    def raising(token_ids: Any, logits: Any) -> Any:
        if len(token_ids) == 5:
            raise error
        return logits

    async def main() -> list[list[Candidate] | BaseException]:
        asked: Settings = {"seed": 1, "max_tokens": 90, "ignore_eos": True}
        tasks = [asyncio.ensure_future(joined(shared.generate([9, 8, 7], **asked))) for _ in range(3)]
        own: Settings = {**asked, "logits_processors": [raising]}
        bad = shared.generate([5, 6, 7], **own)
        tasks.insert(1, asyncio.ensure_future(joined(bad)))
        return await asyncio.gather(*tasks, return_exceptions=True)

    made = run(main())
    assert isinstance(made[1], error)
    expected = llm.generate([9, 8, 7], seed=1, max_tokens=90, ignore_eos=True).candidates
    assert [made[0], *made[2:]] == [expected] * 3
    assert at_rest(shared)


def test_an_engine_that_fails_tells_every_task_and_goes_on(llm: LLM, tiny_path: Path) -> None:
    slow, backend = paced(tiny_path)
    [backend.poison] = slow.tokenizer.encode("~")
    backend.failure = SystemExit("out")

    async def main() -> tuple[list[Any], list[Candidate]]:
        async with AsyncLLM(slow) as shared:
            tasks = [joined(shared.generate(p, **LONG)) for p in ["x", "x~"]]
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            return ended, await joined(shared.generate("x", seed=1, max_tokens=9))

    ended, after = run(main())
    assert [type(error) for error in ended] == [UnspoolError, UnspoolError]
    assert all("the engine failed: SystemExit: out" in str(error) for error in ended)
    assert after == llm.generate("x", seed=1, max_tokens=9).candidates


@pytest.mark.parametrize("turns", [*range(12), 20, 50, 150])
def test_a_task_cancelled_at_any_point_frees_its_cache_and_others_go_on(
    llm: LLM, shared: AsyncLLM, turns: int
) -> None:
    async def main() -> list[Candidate]:
        other = asyncio.create_task(joined(shared.generate("x", seed=2, max_tokens=30)))
        task = asyncio.create_task(joined(shared.generate(PROMPTS[3], SamplingParams(n=2), **LONG)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        made = await other
        await until(lambda: at_rest(shared))
        return made

    assert run(main()) == llm.generate("x", seed=2, max_tokens=30).candidates
    now = shared.stats()
    assert (now.finished, now.failed) == (1, 0)
    assert now.cancelled == (turns > 0)


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_chunk_holds_what_came_within_its_time(tiny_path: Path, seconds: float) -> None:
    async def main() -> list[Chunk]:
        async with AsyncLLM(tiny_path, threads=1, chunk_seconds=seconds) as engine:
            return [chunk async for chunk in engine.generate("x", seed=2, max_tokens=30, ignore_eos=True)]

    chunks = run(main())
    assert chunks[-1].generation is not None
    candidate = chunks[-1].generation.candidates[0]
    assert "".join(chunk.text for chunk in chunks) == candidate.text
    assert [token for chunk in chunks for token in chunk.tokens] == candidate.tokens
    assert len(chunks) == 2 if seconds else len(chunks) > 2


@pytest.mark.parametrize("seconds", [-1, float("nan"), 61])
def test_a_time_for_chunks_out_of_range_is_refused(tiny_path: Path, seconds: float) -> None:
    with pytest.raises(ParameterError, match=r"chunk_seconds must be a number from 0 to 60"):
        AsyncLLM(tiny_path, chunk_seconds=seconds)


@pytest.mark.parametrize("chunks", [0, 1, 2, 40])
@pytest.mark.parametrize("way", ["aclosing", "timeout", "raise"])
def test_leaving_the_loop_early_frees_the_cache(shared: AsyncLLM, way: str, chunks: int) -> None:
    async def read(events: AsyncGenerator[Chunk, None]) -> None:
        count = 0
        async with aclosing(events):
            while count < chunks:
                await anext(events)
                count += 1
            if way == "raise":
                raise KeyError(count)
            if way == "timeout":
                async with asyncio.timeout(0):
                    async for _ in events:
                        await asyncio.sleep(0)

    async def main() -> None:
        error = {"aclosing": None, "timeout": TimeoutError, "raise": KeyError}[way]
        events = shared.generate(PROMPTS[0], SamplingParams(n=2), **LONG)
        if error is None:
            await read(events)
        else:
            with pytest.raises(error):
                await read(events)
        await until(lambda: at_rest(shared))

    run(main())
    assert (shared.stats().finished, shared.stats().failed) == (0, 0)


def test_a_stream_that_was_never_begun_asks_for_nothing(shared: AsyncLLM) -> None:
    async def main() -> None:
        events = shared.generate("x", **LONG)
        await events.aclose()
        del events
        shared.generate("x", **LONG)
        gc.collect()

    run(main())
    assert engine_threads() == []
    assert shared.stats().steps == 0


def test_a_slow_reader_slows_nobody_and_loses_nothing(llm: LLM, shared: AsyncLLM) -> None:
    async def slow(others_done: asyncio.Event) -> list[Candidate]:
        events = shared.generate(PROMPTS[3], seed=8, n=2, max_tokens=40)
        first = await anext(events)
        await others_done.wait()

        async def rest() -> AsyncGenerator[Chunk, None]:
            yield first
            async for chunk in events:
                yield chunk

        return await joined(rest())

    async def main() -> list[Candidate]:
        others_done = asyncio.Event()
        reader = asyncio.create_task(slow(others_done))
        for seed in range(6):
            await joined(shared.generate(PROMPTS[0], seed=seed, max_tokens=60))
        await until(lambda: at_rest(shared))  # the unread request has ended by now
        others_done.set()
        return await reader

    assert run(main()) == llm.generate(PROMPTS[3], seed=8, n=2, max_tokens=40).candidates


def test_an_event_loop_closed_in_the_middle_ends_its_requests(llm: LLM, tiny_path: Path) -> None:
    slow, backend = paced(tiny_path)
    shared = AsyncLLM(slow)
    backend.allowed = 100
    loop = asyncio.new_event_loop()
    events = [shared.generate(prompt, **LONG) for prompt in PROMPTS]

    async def begin() -> None:
        await asyncio.gather(*(anext(each) for each in events))

    loop.run_until_complete(begin())
    loop.close()
    backend.allowed = None
    wait_until(lambda: at_rest(shared))
    assert shared.stats().cancelled == len(events)
    made = run(joined(shared.generate("x", seed=1, max_tokens=9)))
    assert made == llm.generate("x", seed=1, max_tokens=9).candidates
    shared.close()
    assert engine_threads() == []


def test_two_event_loops_in_two_threads_share_one(llm: LLM, shared: AsyncLLM) -> None:
    made: dict[int, list[Candidate]] = {}

    async def main(first: int) -> None:
        indices = range(first, 40, 2)
        tasks = [joined(shared.generate(PROMPTS[i % 4], **mixed_settings(i))) for i in indices]
        made.update(zip(indices, await asyncio.gather(*tasks), strict=True))

    threads = [threading.Thread(target=lambda first=first: run(main(first))) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine_threads()) == 1
    assert len(made) == 40
    for i, candidates in made.items():
        assert candidates == llm.generate(PROMPTS[i % 4], **mixed_settings(i)).candidates
    assert at_rest(shared)


def test_an_llm_may_be_used_synchronously_beside_it(llm: LLM, tiny_path: Path) -> None:
    both = LLM(tiny_path, threads=1, cache_tokens=512)
    shared = AsyncLLM(both)
    expected = {i: llm.generate(PROMPTS[i % 4], **mixed_settings(i)).candidates for i in range(24)}
    made: dict[int, Any] = {}
    streamed: dict[int, str] = {}

    def work(first: int) -> None:
        for i in range(first, 24, 2):
            made[i] = both.generate(PROMPTS[i % 4], **mixed_settings(i)).candidates
            chunks = both.stream(PROMPTS[i % 4], **mixed_settings(i))
            streamed[i] = "".join(chunk.text for chunk in chunks if chunk.index == 0)

    async def main() -> list[list[Candidate]]:
        tasks = [joined(shared.generate(PROMPTS[i % 4], **mixed_settings(i))) for i in range(24)]
        return await asyncio.gather(*tasks)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    awaited = run(main())
    for thread in threads:
        thread.join()
    shared.close()
    assert made == dict(enumerate(awaited)) == expected
    assert streamed == {i: candidates[0].text for i, candidates in expected.items()}
    assert at_rest(both)


def test_closing_ends_what_is_under_way_with_an_error_and_the_thread(tiny_path: Path) -> None:
    slow, backend = paced(tiny_path, cache_tokens=512)
    shared = AsyncLLM(slow)
    backend.allowed = 30

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(joined(shared.generate(prompt, **LONG))) for prompt in PROMPTS * 2]
        await until(lambda: backend.allowed == 0)
        backend.allowed = None
        shared.close()
        assert engine_threads() == []
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = run(main())
    assert [type(error) for error in ended] == [UnspoolError] * 8
    assert all("closed before the request was done" in str(error) for error in ended)
    assert at_rest(slow)
    shared.close()

    async def late() -> None:
        await anext(shared.generate("x"))

    with pytest.raises(UnspoolError, match="the AsyncLLM is closed"):
        run(late())
    assert engine_threads() == []
    assert len(slow.generate("x", max_tokens=3, ignore_eos=True).token_ids) == 3


def test_closing_leaves_the_synchronous_callers_their_results(llm: LLM, tiny_path: Path) -> None:
    slow, backend = paced(tiny_path)
    shared = AsyncLLM(slow)
    backend.allowed = 10
    made: list[Any] = []
    caller = threading.Thread(target=lambda: made.append(slow.generate("x", seed=5, max_tokens=60)))

    async def main() -> None:
        task = asyncio.create_task(joined(shared.generate(PROMPTS[0], **LONG)))
        await until(lambda: backend.allowed == 0)
        caller.start()
        backend.allowed = None
        shared.close()
        with pytest.raises(UnspoolError, match="closed"):
            await task

    run(main())
    caller.join()
    assert made[0].candidates == llm.generate("x", seed=5, max_tokens=60).candidates


def test_a_request_made_while_another_thread_closes_ends(tiny_path: Path) -> None:
    for delay in range(30):
        shared = AsyncLLM(LLM(tiny_path, threads=1))
        ended: list[Any] = []

        async def main(shared: AsyncLLM = shared, ended: list[Any] = ended) -> None:
            tasks = [joined(shared.generate("x", **LONG)) for _ in range(20)]
            ended += await asyncio.gather(*tasks, return_exceptions=True)

        asker = threading.Thread(target=run, args=(main(),))
        asker.start()
        for _ in range(delay * 20):
            pass
        shared.close()
        asker.join()
        assert len(ended) == 20
        assert {type(end) for end in ended} <= {UnspoolError, list}
        assert engine_threads() == []


def test_one_that_nobody_closed_ends_its_thread_when_it_is_collected(llm: LLM, tiny_path: Path) -> None:
    made = AsyncLLM(tiny_path, threads=1)
    assert len(run(joined(made.generate("x", seed=1, max_tokens=9)))) == 1
    [thread] = engine_threads()
    ring: list[Any] = [made]
    ring.append(ring)
    del made, ring
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_stream_keeps_what_computes_it(llm: LLM, tiny_path: Path) -> None:
    def events() -> AsyncGenerator[Chunk, None]:
        return AsyncLLM(tiny_path, threads=1).generate("x", seed=1, max_tokens=30)

    async def main() -> list[Candidate]:
        mine = events()
        gc.collect()
        return await joined(mine)

    assert run(main()) == llm.generate("x", seed=1, max_tokens=30).candidates
    gc.collect()
    wait_until(lambda: engine_threads() == [])


FORGETFUL = """
import asyncio, sys
from unspool import AsyncLLM

way, llm = sys.argv[2], AsyncLLM(sys.argv[1], threads=2)
kept = []

async def main():
    events = llm.generate("the", max_tokens=450, ignore_eos=True)
    kept.append(events)
    async for chunk in events:
        if way == "break":
            break

if way == "open":  # a loop that nobody ends, with a request under way
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(llm.generate("the", max_tokens=450, ignore_eos=True)))
else:
    asyncio.run(main())
print("end", flush=True)
if way == "exit":
    sys.exit(3)
"""


@pytest.mark.parametrize(("way", "status"), [("done", 0), ("break", 0), ("open", 0), ("exit", 3)])
def test_a_process_that_forgets_to_close_ends_normally(tiny_path: Path, way: str, status: int) -> None:
    command = [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c"]
    command += [FORGETFUL, str(tiny_path), way]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (status, "end\n", "")
