"""Many requests at once: unspool's engine beside other engines, in one run.

    python -m benchmarks.serving --llama-cpp-python PEER/bin/python --openvino-python PEER/bin/python

Throughput counts generated tokens over whole wall time, prompts included, of requests that are given all at
once; the mixed load has clients that chat while long prompts arrive by the clock. A round takes the
measurements in a shuffled order, and at each one the engines in a shuffled order. The first round warms up
and is thrown away. A ratio is taken within a round; tables show the median over rounds (and the least and the
most). Each round has prompts of its own, random token ids, the same for every engine: no request begins like
an earlier one, and a prefix cache helps nobody. The use of the cache is measured once: no clock enters it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks import async_front, cache_use
from benchmarks.command_line import parser_of, say_what_is_skipped
from benchmarks.machine import Machine
from benchmarks.peer import Peer
from benchmarks.raw_steps import RawSteps
from benchmarks.scenario import SCENARIOS
from benchmarks.served import MixedFigures, Served
from benchmarks.serving_results import (
    LLAMA_CPP,
    OPENVINO,
    UNSPOOL,
    ServingResults,
    outside_shares,
    report,
)
from benchmarks.workload import BATCHES, TEMPERATURE, TOP_K, Batch, MixedLoad, random_prompt
from unspool import LLM, AsyncLLM, SamplingParams
from unspool.backend.threads import default_threads
from unspool.model.loader import load

STREAM = next(s for s in SCENARIOS if s.name == "decode-1")
"""One sequence, timed after its first token."""
MOST_REQUESTS = max(batch.requests for batch in BATCHES)
CACHE_TOKENS = max(batch.requests * (batch.prompt + batch.tokens) for batch in BATCHES)
BATCH_STEP_TOKENS = 2048
"""OpenVINO's limit on a step where throughput is measured: all prompts of 32 requests in one step."""
LLAMA_CPP_REQUESTS = 32
"""The largest batch that llama.cpp is asked for; greedy ones alone, as its step here is an argmax."""
MEASUREMENTS = (*(batch.name for batch in BATCHES), "stream", "mixed", "cache")


class Session:
    """The engines of one run, all loaded."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.threads = arguments.threads or default_threads()
        self.loaded = load(arguments.model)
        self.raw = RawSteps(self.loaded, self.threads, [STREAM])
        self.llm = stack.enter_context(
            LLM(
                self.loaded.path,
                threads=self.threads,
                cache_tokens=CACHE_TOKENS,
                step_tokens=arguments.step_tokens,
            )
        )
        self.load = MixedLoad(0, seconds=arguments.mixed_seconds)
        self.results = ServingResults(
            Machine.of(self.threads, self.raw.backend.instruction_set),
            self.loaded.path.name,
            arguments.rounds,
            {},
            self.load,
            {UNSPOOL: arguments.step_tokens},
        )
        self.batch_engines: dict[str, Callable[[Batch, int], float]] = {UNSPOOL: self._generate}
        self.mixed_engines: dict[str, Callable[[MixedLoad], list[Served]]] = {UNSPOOL: self._serve}
        start: dict[str, Any] = {"model": str(self.loaded.path), "threads": self.threads}
        if arguments.llama_cpp_python:
            self._add_batches(LLAMA_CPP, Peer("llama_cpp_serving", arguments.llama_cpp_python, start), stack)
        if arguments.openvino_python:
            start["requests"] = MOST_REQUESTS
            python, limit = arguments.openvino_python, arguments.openvino_step_tokens
            peer = Peer("openvino_serving", python, {**start, "step_tokens": BATCH_STEP_TOKENS})
            self._add_batches(OPENVINO, peer, stack)
            self._add_mixed(
                OPENVINO, Peer("openvino_serving", python, {**start, "step_tokens": limit}), stack
            )

    def _add_batches(self, name: str, peer: Peer, stack: ExitStack) -> None:
        stack.enter_context(peer)
        self.results.versions[name] = peer.started["version"]
        self.batch_engines[name] = lambda batch, seed: float(
            peer.ask({"batch": batch.to_dict(), "seed": seed})["seconds"]
        )

    def _add_mixed(self, name: str, peer: Peer, stack: ExitStack) -> None:
        stack.enter_context(peer)
        self.results.step_tokens[name] = peer.started["step_tokens"]
        self.mixed_engines[name] = lambda load: [
            Served(**served) for served in peer.ask({"load": load.to_dict()})["served"]
        ]

    def measure(self, name: str, number: int) -> str:
        """One measurement of one round, kept unless it warms up; a line that says what was measured."""
        if name == "stream":
            return self._stream(number)
        if name == "mixed":
            return self._mixed(number)
        return self._batch(next(batch for batch in BATCHES if batch.name == name), number)

    def _batch(self, batch: Batch, number: int) -> str:
        beyond = batch.sampled or batch.requests > LLAMA_CPP_REQUESTS
        names = [name for name in self.batch_engines if name != LLAMA_CPP or not beyond]
        before = self.llm.stats()
        seconds = {name: self.batch_engines[name](batch, number) for name in shuffled(names)}
        outside = outside_shares(before, self.llm.stats(), seconds[UNSPOOL])
        rates = {name: batch.generated / of for name, of in seconds.items()}
        if number > 0:
            keep(self.results.rates.setdefault(batch.name, {}), rates)
            keep(self.results.outside.setdefault(batch.name, {}), outside)
        return f"{spoken(rates)}; {100 * outside['step']:.1f}% of a step outside forward and sampling"

    def _generate(self, batch: Batch, seed: int) -> float:
        """Seconds of ``LLM.generate`` on the whole list."""
        params = SamplingParams(
            temperature=TEMPERATURE if batch.sampled else 0.0,
            top_k=TOP_K if batch.sampled else None,
            max_tokens=batch.tokens,
            ignore_eos=True,
            seed=seed,
        )
        prompts = batch.prompts(seed)
        start = time.perf_counter()
        made = self.llm.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - start
        generated = sum(len(generation.token_ids) for generation in made)
        if generated != batch.generated:
            raise RuntimeError(f"{generated} tokens were generated, not {batch.generated}")
        return seconds

    def _stream(self, number: int) -> str:
        """One answer through ``AsyncLLM`` and by raw steps, in turns; the median of the repeats."""

        async def through_front(repeat: int) -> float:
            prompt = random_prompt(STREAM.prompt, number, "stream", repeat)
            async with AsyncLLM(self.llm) as engine:
                return await async_front.decode_seconds(engine, prompt, STREAM.steps)

        seconds: dict[str, list[float]] = {"AsyncLLM": [], "raw steps": []}
        for repeat in range(STREAM.repeats):
            for name in shuffled(seconds):
                seconds[name].append(
                    asyncio.run(through_front(repeat)) if name == "AsyncLLM" else self.raw.measure(STREAM)
                )
        rates = {name: STREAM.tokens / median(of) for name, of in seconds.items()}
        if number > 0:
            keep(self.results.stream, rates)
        return spoken(rates)

    def _mixed(self, number: int) -> str:
        load, stalls = replace(self.load, seed=number), {}
        for name in shuffled(self.mixed_engines):
            figures = MixedFigures.of(load, self.mixed_engines[name](load))
            stalls[name] = figures.stall
            if number > 0:
                keep(self.results.mixed.setdefault(name, {}), figures.to_dict())
        return "p99 between tokens beside a long prompt, in decode-only steps: " + spoken(stalls, 1)

    def _serve(self, load: MixedLoad) -> list[Served]:
        """The mixed load through ``AsyncLLM``."""

        async def through_front() -> list[Served]:
            async with AsyncLLM(self.llm) as engine:
                return await async_front.serve_mixed(engine, load)

        return asyncio.run(through_front())


def shuffled(names: Iterable[str]) -> list[str]:
    """The names in a random order."""
    listed = list(names)
    return random.sample(listed, len(listed))


def keep(series: dict[str, list[float]], values: dict[str, float]) -> None:
    """Add one round's value to each series."""
    for name, value in values.items():
        series.setdefault(name, []).append(value)


def spoken(values: dict[str, float], digits: int = 0) -> str:
    """Values by name in a line."""
    return ", ".join(f"{name} {value:,.{digits}f}" for name, value in sorted(values.items()))


def run(arguments: argparse.Namespace) -> ServingResults:
    """All rounds."""
    names = [name for name in MEASUREMENTS if not arguments.only or name in arguments.only]
    repeated = [name for name in names if name != "cache"]
    with ExitStack() as stack:
        session = Session(arguments, stack)
        for number in range(arguments.rounds + 1 if repeated else 0):
            for name in shuffled(repeated):
                line = session.measure(name, number)
                print(f"{f'round {number}' if number else 'warm-up'}: {name}: {line}", file=sys.stderr)
        if "cache" in names:
            session.results.cache = asyncio.run(cache_use.measure(session.loaded.path, session.threads))
        return session.results


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("serving", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--threads", type=int, help="of every engine (default: physical cores to use)")
    parser.add_argument(
        "--only", action="append", choices=MEASUREMENTS, help="a measurement; may be repeated"
    )
    parser.add_argument("--mixed-seconds", type=float, default=30.0, help="the mixed load (default: 30)")
    parser.add_argument("--step-tokens", type=int, help="the most that a step of unspool computes")
    parser.add_argument(
        "--openvino-step-tokens", type=int, help="the same for OpenVINO, under the mixed load alone"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.mixed_seconds < 6:
        parser.error("--rounds must be at least 1, and --mixed-seconds at least 6")
    return arguments


def main() -> None:
    """Measure, and print Markdown."""
    arguments = parse_arguments()
    say_what_is_skipped(arguments)
    results = run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results.to_dict(), indent=1) + "\n")
    print(report(results))


if __name__ == "__main__":
    main()
