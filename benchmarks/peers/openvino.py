"""OpenVINO GenAI reading the GGUF file itself, through either of its two pipelines.

``paged``: ContinuousBatchingPipeline, stepped by hand; its scheduler's limits are set so that every prompt
of a scenario is computed in one step and all sequences then decode together. ``stateful``: LLMPipeline with
the SDPA attention backend, timed by its own metrics. Both with the latency hint and OpenVINO's default cache
precision.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found,unused-ignore]
import openvino_genai as genai  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.serve import Answer, Job, serve
from benchmarks.scenario import Scenario, prompts_of


def generation_config(scenario: Scenario) -> Any:
    """Greedy, past the end of text; the first token comes with the prompt, the others with timed steps."""
    config = genai.GenerationConfig()
    config.max_new_tokens = scenario.steps + 1
    config.ignore_eos = True
    config.do_sample = False
    return config


class Paged:
    """Continuous batching over a paged cache."""

    def __init__(self, model: str, properties: dict[str, Any]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 1  # GB
        scheduler.enable_prefix_caching = False
        self.pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def measure(self, scenario: Scenario) -> float:
        """Seconds of the scenario's timed part."""
        handles = [
            self.pipeline.add_request(
                i, openvino.Tensor(np.array([ids], np.int64)), generation_config(scenario)
            )
            for i, ids in enumerate(prompts_of(scenario))
        ]
        seconds = []
        while self.pipeline.has_non_finished_requests():
            start = time.perf_counter()
            self.pipeline.step()
            seconds.append(time.perf_counter() - start)
        for handle in handles:
            generated = len(handle.read_all()[0].generated_ids)
            if generated != scenario.steps + 1:
                raise RuntimeError(f"{generated} tokens were generated, not {scenario.steps + 1}")
        return sum(seconds[-scenario.steps :])  # all steps where none is timed apart from the prompt's


class Stateful:
    """One static batch, its cache within the compiled model."""

    def __init__(self, model: str, properties: dict[str, Any]) -> None:
        self.pipeline = genai.LLMPipeline(model, "CPU", ATTENTION_BACKEND="SDPA", **properties)

    def measure(self, scenario: Scenario) -> float:
        """Seconds of the scenario's timed part."""
        ids = np.array(prompts_of(scenario), np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        result = self.pipeline.generate(inputs, generation_config(scenario))
        generated = {len(tokens) for tokens in result.tokens}
        if generated != {scenario.steps + 1}:
            raise RuntimeError(f"{generated} tokens were generated, not {scenario.steps + 1}")
        first = float(result.perf_metrics.get_ttft().mean)
        whole = float(result.perf_metrics.get_generate_duration().mean)
        return ((whole - first) if scenario.steps else first) / 1000


def start(job: Job) -> tuple[Answer, Any]:
    """Load the model; answer with the time that took."""
    properties = {"INFERENCE_NUM_THREADS": job["threads"], "PERFORMANCE_HINT": "LATENCY"}
    begin = time.perf_counter()
    kind = Paged if job["pipeline"] == "paged" else Stateful
    pipeline = kind(job["model"], properties)
    seconds = time.perf_counter() - begin

    def respond(job: Job) -> Answer:
        return {"seconds": pipeline.measure(Scenario(**job["scenario"]))}

    return {"version": genai.__version__, "load_seconds": seconds}, respond


if __name__ == "__main__":
    serve(start)
