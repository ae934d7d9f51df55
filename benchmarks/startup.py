"""How long until the first token, and how much memory: fresh processes, several times, medians.

    python -m benchmarks.startup --llama-cpp-python PEER/bin/python --openvino-python PEER/bin/python

The first run of each is thrown away: it brings the files into the page cache. Linux only, as memory is
read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of, say_what_is_skipped
from benchmarks.markdown import table
from benchmarks.peer import ROOT, Peer
from benchmarks.spread import Spread
from unspool.backend.cpu import CpuBackend
from unspool.backend.threads import default_threads
from unspool.llm import cache_blocks
from unspool.model.loader import load

BUDGET = 120e6
"""Bytes of private memory that the program may take beside weights and cache."""


def load_once(model: Path) -> dict[str, Any]:
    """One fresh process's answer: see ``benchmarks.loading``."""
    command = [sys.executable, "-m", "benchmarks.loading", str(model)]
    made: dict[str, Any] = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    )
    return made


def first_token_seconds(model: Path) -> float:
    """From starting ``unspool generate`` to the first byte of text that it prints."""
    command = [str(Path(sys.executable).parent / "unspool"), "generate", "Once upon a time"]
    options = ["--model", str(model), "--max-tokens", "8", "--temperature", "0", "--ignore-eos", "--quiet"]
    begin = time.perf_counter()
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - begin
        _, printed = process.communicate()
    if not first or process.returncode != 0:
        raise RuntimeError(f"unspool generate failed: {printed.decode(errors='replace')[-2000:]}")
    return seconds


def peer_load_seconds(module: str, python: Path, job: dict[str, Any]) -> float:
    """What one fresh process of a peer takes to load the model, its imports not counted."""
    with Peer(module, python, job) as peer:
        return float(peer.started["load_seconds"])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every figure, a value a run."""
    loaded = load(arguments.model)
    backend = CpuBackend(loaded.spec, loaded.tensors)
    cache_tokens = 16 * cache_blocks(loaded.spec, None, None)
    job = {"model": str(loaded.path), "threads": default_threads()}
    peers = {
        "llama.cpp": ("llama_cpp", arguments.llama_cpp_python, job),
        "OpenVINO GenAI": ("openvino", arguments.openvino_python, {**job, "pipeline": "paged"}),
    }
    given = {name: (module, python, job) for name, (module, python, job) in peers.items() if python}
    runs, first, loads = [], [], {name: [] for name in given}  # type: ignore[var-annotated]
    for _ in range(arguments.runs + 1):
        runs.append(load_once(loaded.path))
        first.append(first_token_seconds(loaded.path))
        for name, (module, python, peer_job) in given.items():
            loads[name].append(peer_load_seconds(module, python, peer_job))
    return {
        "model": loaded.path.name,
        "weight_bytes": backend.packed_bytes,
        "cache_bytes": cache_tokens * loaded.spec.cache_bytes_per_token(),
        "runs": runs[1:],
        "first_token_seconds": first[1:],
        "peer_load_seconds": {name: values[1:] for name, values in loads.items()},
    }


def report(made: dict[str, Any]) -> str:
    """The figures as Markdown."""
    runs = made["runs"]

    def seconds(values: list[float]) -> str:
        return Spread.of(values).text(3)

    def megabytes(when: str, kind: str, less: float = 0) -> str:
        return Spread.of([run[when][kind] - less for run in runs]).text(1, 1e-6)

    weights, cache = made["weight_bytes"], made["cache_bytes"]
    times = [
        ["`import unspool`", seconds([run["import_seconds"] for run in runs])],
        ["load, tokenizer included", seconds([run["load_seconds"] for run in runs])],
        ["`unspool generate` to its first token", seconds(made["first_token_seconds"])],
        *[[f"load, {name}", seconds(values)] for name, values in made["peer_load_seconds"].items()],
    ]
    memory = [
        [label, megabytes(when, "RssAnon"), megabytes(when, "RssFile"), megabytes(when, "RssAnon", weights)]
        for label, when in (("after load", "after_load"), ("after 16 tokens", "after_generate"))
    ]
    return "\n\n".join(
        [
            f"{made['model']}, {len(runs)} runs; median (least-most).",
            table(["seconds", ""], times),
            f"Packed weights: {weights / 1e6:.1f} MB. Default cache: {cache / 1e6:.1f} MB, its pages given "
            f"as they are first written. Budget beside both: {BUDGET / 1e6:.0f} MB.",
            table(["MB", "RssAnon", "RssFile", "RssAnon less weights"], memory),
        ]
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("startup", __doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs that count, after one that warms up")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    return arguments


def main() -> None:
    """Measure, and print Markdown."""
    arguments = parse_arguments()
    say_what_is_skipped(arguments)
    made = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(made, indent=1) + "\n")
    print(report(made))


if __name__ == "__main__":
    main()
