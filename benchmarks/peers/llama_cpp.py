"""llama.cpp through the low-level calls of llama-cpp-python: the least that can stand around its kernels.

One context for each scenario, with flash attention left to the library, its usual float16 cache, and as many
threads as the other engines have. Prompts are computed once and kept; each measurement removes what the one
before decoded.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]
import numpy as np
import numpy.typing as npt

from benchmarks.peers.serve import Answer, Job, serve
from benchmarks.scenario import Scenario, prompts_of

UBATCH = 512
_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)


class Context:
    """A llama.cpp context and a batch that fills it."""

    def __init__(self, model: Any, threads: int, sequences: int, length: int, outputs: int, **settings: int):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * (-(-length // 256) * 256)
        params.n_batch = params.n_ubatch = UBATCH
        params.n_seq_max = sequences
        params.n_outputs_max = max(outputs, sequences)
        params.n_outputs_max_per_seq = -(-outputs // sequences)
        params.n_threads = params.n_threads_batch = threads
        for name, value in settings.items():
            setattr(params, name, value)
        self.handle = llama_cpp.llama_init_from_model(model, params)
        if not self.handle:
            raise MemoryError("llama.cpp made no context")
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.batch = llama_cpp.llama_batch_init(UBATCH, 0, 1)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def decode(self, runs: list[tuple[int, int, list[int]]], every_row: bool = False) -> None:
        """Compute (sequence, first position, tokens) runs; wants each run's last row, or every row."""
        batch, i = self.batch, 0
        for sequence, start, tokens in runs:
            for offset, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = start + offset
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
                batch.logits[i] = every_row or offset == len(tokens) - 1
                i += 1
        batch.n_tokens = i
        status = llama_cpp.llama_decode(self.handle, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def row(self, index: int) -> npt.NDArray[np.float32]:
        """[vocab] logits of the batch's token ``index``; a view until the next decode."""
        pointer = llama_cpp.llama_get_logits_ith(self.handle, index)
        return np.ctypeslib.as_array(pointer, (self.vocab_size,))


class Runner:
    """Times scenarios, each in its own context."""

    def __init__(self, model: Any, threads: int, settings: dict[str, int]) -> None:
        self.model = model
        self.threads = threads
        self.settings = settings
        self.contexts: dict[str, Context] = {}

    def measure(self, scenario: Scenario) -> float:
        """Seconds of the scenario's timed part."""
        if scenario.steps == 0:
            return self._prefill(scenario)
        context = self._context(scenario)
        for sequence in range(scenario.sequences):
            llama_cpp.llama_memory_seq_rm(context.memory, sequence, scenario.prompt, -1)
        tokens = [1] * scenario.sequences
        start = time.perf_counter()
        for position in range(scenario.prompt, scenario.prompt + scenario.steps):
            context.decode([(s, position, [token]) for s, token in enumerate(tokens)])
            tokens = [int(context.row(i).argmax()) for i in range(scenario.sequences)]
        return time.perf_counter() - start

    def _prefill(self, scenario: Scenario) -> float:
        context = self._context(scenario)
        prompt = prompts_of(scenario)[0]
        llama_cpp.llama_memory_clear(context.memory, False)
        start = time.perf_counter()
        context.decode([(0, 0, prompt)])
        context.row(len(prompt) - 1).argmax()
        return time.perf_counter() - start

    def _context(self, scenario: Scenario) -> Context:
        """The scenario's context, its prompts computed."""
        if scenario.name in self.contexts:
            return self.contexts[scenario.name]
        length = scenario.prompt + scenario.steps
        context = Context(
            self.model, self.threads, scenario.sequences, length, scenario.sequences, **self.settings
        )
        for sequence, prompt in enumerate(prompts_of(scenario)):
            for first in range(0, len(prompt), UBATCH):
                context.decode([(sequence, first, prompt[first : first + UBATCH])])
        self.contexts[scenario.name] = context
        return context


def write_logits(model: Any, threads: int, job: Job) -> None:
    """Every row of every window into the job's .npy file, computed whole or one token at a time."""
    windows: list[list[int]] = job["windows"]
    length = len(windows[0])
    context = Context(model, threads, 1, length, length)
    out = np.lib.format.open_memmap(
        job["out"], mode="w+", dtype=np.float32, shape=(len(windows), length, context.vocab_size)
    )
    for window, ids in zip(out, windows, strict=True):
        llama_cpp.llama_memory_clear(context.memory, False)
        if not job["one_by_one"]:
            context.decode([(0, 0, ids)], every_row=True)
        for position, token in enumerate(ids):
            if job["one_by_one"]:
                context.decode([(0, position, [token])])
            window[position] = context.row(0 if job["one_by_one"] else position)
    out.flush()


def load_model(path: str) -> Any:
    """The model, on the processor alone, without llama.cpp's log."""
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise OSError(f"llama.cpp cannot load {path}")
    return model


def start(job: Job) -> tuple[Answer, Any]:
    """Load the model; answer with the time that took."""
    begin = time.perf_counter()
    model = load_model(job["model"])
    settings = job.get("settings", {})
    Context(model, job["threads"], 1, 256, 1, **settings)
    seconds = time.perf_counter() - begin
    runner = Runner(model, job["threads"], settings)

    def respond(job: Job) -> Answer:
        if "windows" in job:
            write_logits(model, runner.threads, job)
            return {}
        return {"seconds": runner.measure(Scenario(**job["scenario"]))}

    return {"version": llama_cpp.__version__, "load_seconds": seconds}, respond


if __name__ == "__main__":
    serve(start)
