"""llama.cpp under many requests at once: one ``llama_decode`` a step with a token of every sequence.

Prompts are computed as many together as the micro-batch holds; then every sequence takes the most probable
token of its row, step by step. Context and calls are those of ``benchmarks.peers.llama_cpp``.
"""

from __future__ import annotations

import time
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.llama_cpp import UBATCH, Context, load_model
from benchmarks.peers.serve import Answer, Job, serve
from benchmarks.workload import Batch


def generate(context: Context, batch: Batch, seed: int) -> float:
    """Seconds of the whole batch, prompts included."""
    prompts = batch.prompts(seed)
    llama_cpp.llama_memory_clear(context.memory, False)
    made: list[list[int]] = []
    start = time.perf_counter()
    together = UBATCH // batch.prompt
    for first in range(0, batch.requests, together):
        group = prompts[first : first + together]
        context.decode([(first + i, 0, ids) for i, ids in enumerate(group)])
        made += [[int(context.row((i + 1) * batch.prompt - 1).argmax())] for i in range(len(group))]
    for position in range(batch.prompt, batch.prompt + batch.tokens - 1):
        context.decode([(s, position, tokens[-1:]) for s, tokens in enumerate(made)])
        for i, tokens in enumerate(made):
            tokens.append(int(context.row(i).argmax()))
    seconds = time.perf_counter() - start
    generated = sum(map(len, made))
    if generated != batch.generated:
        raise RuntimeError(f"{generated} tokens were generated, not {batch.generated}")
    return seconds


def start(job: Job) -> tuple[Answer, Any]:
    """Load the model; each batch keeps a context of its own."""
    model = load_model(job["model"])
    contexts: dict[str, Context] = {}

    def respond(job: Job) -> Answer:
        batch = Batch(**job["batch"])
        if batch.name not in contexts:
            length = batch.prompt + batch.tokens
            contexts[batch.name] = Context(model, threads, batch.requests, length, batch.requests, **settings)
        return {"seconds": generate(contexts[batch.name], batch, job["seed"])}

    threads, settings = job["threads"], job.get("settings", {})
    return {"version": llama_cpp.__version__}, respond


if __name__ == "__main__":
    serve(start)
