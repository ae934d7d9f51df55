"""unspool's asynchronous front as its clients see it: one answer alone, and the mixed load."""

from __future__ import annotations

import asyncio
import time

from benchmarks.served import Served
from benchmarks.workload import Ask, MixedLoad
from unspool import AsyncLLM, SamplingParams


async def decode_seconds(engine: AsyncLLM, prompt: list[int], steps: int) -> float:
    """Seconds from the first token of an answer to the one ``steps`` later, its last."""
    times: list[float] = []
    tokens = 0
    async for chunk in engine.generate(prompt, temperature=0.0, max_tokens=steps + 1, ignore_eos=True):
        if chunk.tokens:
            times.append(time.perf_counter())
            tokens += len(chunk.tokens)
    if tokens != steps + 1:
        raise RuntimeError(f"{tokens} tokens were generated, not {steps + 1}")
    return times[-1] - times[0]


async def serve_mixed(engine: AsyncLLM, load: MixedLoad) -> list[Served]:
    """The whole load, until the last request has ended: a task for each client and each long prompt."""
    served: list[Served] = []
    begin = time.perf_counter()

    def now() -> float:
        return time.perf_counter() - begin

    async def answer(ask: Ask, asked: float) -> None:
        record = Served(ask.kind, asked)
        served.append(record)
        params = SamplingParams(temperature=0.0, max_tokens=ask.tokens, ignore_eos=True)
        async for chunk in engine.generate(ask.prompt, params):
            if chunk.tokens:
                record.pieces.append(now())

    async def chat(client: int) -> None:
        number = 0
        while number == 0 or now() < load.seconds:
            await answer(load.chat(client, number), now())
            number += 1

    async def arrive(due: float, ask: Ask) -> None:
        await asyncio.sleep(due - now())
        await answer(ask, due)

    async with asyncio.TaskGroup() as tasks:
        for client in range(load.clients):
            tasks.create_task(chat(client))
        for due, ask in load.arrivals():
            tasks.create_task(arrive(due, ask))
    return served
