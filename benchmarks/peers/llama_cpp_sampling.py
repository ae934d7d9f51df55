"""llama.cpp's samplers through the low-level calls of llama-cpp-python: a chain applied to rows of logits.

Its list of candidates is filled beforehand, so that the time is that of the chain and the draw alone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]
import numpy as np
import numpy.typing as npt

from benchmarks.peers.serve import Answer, Job, serve

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def chain_of(samplers: Sequence[Sequence[Any]], history: Sequence[int], vocabulary: int) -> Any:
    """A chain of samplers, each a name and its arguments, and a draw at the end."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    makers = {
        "penalties": lambda *of: llama_cpp.llama_sampler_init_penalties(vocabulary, *of),
        "temp": llama_cpp.llama_sampler_init_temp,
        "top_n_sigma": llama_cpp.llama_sampler_init_top_n_sigma,
        "top_k": llama_cpp.llama_sampler_init_top_k,
        "top_p": lambda p: llama_cpp.llama_sampler_init_top_p(p, 1),
        "min_p": lambda p: llama_cpp.llama_sampler_init_min_p(p, 1),
        "typical": lambda p: llama_cpp.llama_sampler_init_typical(p, 1),
        "xtc": lambda *of: llama_cpp.llama_sampler_init_xtc(*of, 1, 7),
        "mirostat": lambda *of: llama_cpp.llama_sampler_init_mirostat(vocabulary, 7, *of, 100),
        "mirostat_v2": lambda *of: llama_cpp.llama_sampler_init_mirostat_v2(7, *of),
    }
    for name, *values in samplers:
        llama_cpp.llama_sampler_chain_add(chain, makers[name](*values))
    if not samplers or not samplers[-1][0].startswith("mirostat"):
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(7))
    for token in history:
        llama_cpp.llama_sampler_accept(chain, token)
    return chain


def measure(chain: Any, logits: npt.NDArray[np.float32]) -> float:
    """Seconds of one pass over all rows."""
    candidates = np.zeros(logits.shape[1], CANDIDATE)
    seconds = 0.0
    for row in logits:
        candidates["id"], candidates["logit"], candidates["p"] = np.arange(len(row)), row, 0
        data = candidates.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
        array = llama_cpp.llama_token_data_array(data, len(row), -1, False)
        start = time.perf_counter()
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        seconds += time.perf_counter() - start
    return seconds


def start(job: Job) -> tuple[Answer, Any]:
    """Load the rows."""
    rows = {name: np.load(path) for name, path in job["rows"].items()}

    def respond(job: Job) -> Answer:
        logits = rows[job["row"]]
        chain = chain_of(job["samplers"], job["history"], logits.shape[1])
        seconds = measure(chain, logits)
        llama_cpp.llama_sampler_free(chain)
        return {"seconds": seconds}

    return {"version": llama_cpp.__version__}, respond


if __name__ == "__main__":
    serve(start)
