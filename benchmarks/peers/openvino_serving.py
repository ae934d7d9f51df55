"""OpenVINO GenAI's ContinuousBatchingPipeline under many requests, reading the GGUF file itself.

Batches go through ``generate`` on the whole list, under limits that let every request of a batch decode
together; the mixed load through ``add_request`` and ``step``, every handle read after each step. The latency
hint, OpenVINO's default cache precision, no prefix cache, which would find nothing.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found,unused-ignore]
import openvino_genai as genai  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.serve import Answer, Job, serve
from benchmarks.served import Served
from benchmarks.workload import TEMPERATURE, TOP_K, Ask, Batch, MixedLoad

CACHE_GIGABYTES = 2


def generation_config(tokens: int, sampled: bool = False, seed: int = 0) -> Any:
    """``tokens`` past any end of text."""
    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = sampled
    if sampled:
        config.temperature, config.top_k, config.top_p, config.rng_seed = TEMPERATURE, TOP_K, 1.0, seed
    return config


def tensor(ids: list[int]) -> Any:
    """[1, tokens] of one prompt."""
    return openvino.Tensor(np.array([ids], np.int64))


def generate(pipeline: Any, batch: Batch, seed: int) -> float:
    """Seconds of the whole batch, prompts included."""
    inputs = [tensor(ids) for ids in batch.prompts(seed)]
    configs = [generation_config(batch.tokens, batch.sampled, seed + i) for i in range(batch.requests)]
    start = time.perf_counter()
    results = pipeline.generate(inputs, configs)
    seconds = time.perf_counter() - start
    generated = sum(len(result.m_generation_ids[0]) for result in results)
    if generated != batch.generated:
        raise RuntimeError(f"{generated} tokens were generated, not {batch.generated}")
    return seconds


class Flight:
    """The requests under way of one mixed load, and the clients that wait for their chats."""

    def __init__(self, pipeline: Any, load: MixedLoad) -> None:
        self.pipeline = pipeline
        self.load = load
        self.begin = time.perf_counter()
        self.served: list[Served] = []
        self._numbers = count()
        self._under_way: list[tuple[Any, Served, int]] = []
        """Handle, record, and the client whose chat it is, or -1."""
        self._asked = [0] * load.clients

    def now(self) -> float:
        """Seconds from the beginning."""
        return time.perf_counter() - self.begin

    def chat(self, client: int) -> None:
        """A client's next chat."""
        self.ask(self.load.chat(client, self._asked[client]), self.now(), client)
        self._asked[client] += 1

    def ask(self, ask: Ask, asked: float, client: int = -1) -> None:
        """Give a request to the pipeline."""
        record = Served(ask.kind, asked)
        config = generation_config(ask.tokens)
        handle = self.pipeline.add_request(next(self._numbers), tensor(ask.prompt), config)
        self.served.append(record)
        self._under_way.append((handle, record, client))

    def step(self) -> None:
        """One step: what it made goes to the clients, and those whose chat has ended ask again."""
        self.pipeline.step()
        now, still, free = self.now(), [], []
        for handle, record, client in self._under_way:
            if handle.can_read() and any(part.generated_ids for part in handle.read().values()):
                record.pieces.append(now)
            if handle.get_status() == genai.GenerationStatus.RUNNING:
                still.append((handle, record, client))
            elif client >= 0 and now < self.load.seconds:
                free.append(client)
        self._under_way = still
        for client in free:
            self.chat(client)


def serve_mixed(pipeline: Any, load: MixedLoad) -> list[Served]:
    """The whole load, until the last request has ended."""
    arrivals = list(load.arrivals())
    flight = Flight(pipeline, load)
    for client in range(load.clients):
        flight.chat(client)
    while pipeline.has_non_finished_requests() or arrivals:
        while arrivals and arrivals[0][0] <= flight.now():
            due, ask = arrivals.pop(0)
            flight.ask(ask, due)
        if pipeline.has_non_finished_requests():
            flight.step()
        elif arrivals:
            time.sleep(max(0.0, arrivals[0][0] - flight.now()))
    return flight.served


def start(job: Job) -> tuple[Answer, Any]:
    """Load the model under the job's limits of the scheduler."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIGABYTES
    scheduler.max_num_seqs = job["requests"]
    scheduler.enable_prefix_caching = False
    if job["step_tokens"] is not None:
        scheduler.max_num_batched_tokens = job["step_tokens"]
    properties = {"INFERENCE_NUM_THREADS": job["threads"], "PERFORMANCE_HINT": "LATENCY"}
    pipeline = genai.ContinuousBatchingPipeline(job["model"], scheduler, "CPU", properties)

    def respond(job: Job) -> Answer:
        if "load" in job:
            return {"served": [s.to_dict() for s in serve_mixed(pipeline, MixedLoad(**job["load"]))]}
        return {"seconds": generate(pipeline, Batch(**job["batch"]), job["seed"])}

    return {"version": genai.__version__, "step_tokens": scheduler.max_num_batched_tokens}, respond


if __name__ == "__main__":
    serve(start)
