"""Microseconds a row of sampling, on one thread: unspool beside its reference and other engines' samplers.

    python -m benchmarks.sampling --llama-cpp-python PEER/bin/python

Each stack of rules runs over rows of the model's logits and over random normal rows (standard deviation 3) of
the same size and of 262,144. unspool's figures hold everything that it reports: log-probabilities, rank and
entropy too. Transformers' processors are timed with a softmax and a draw, llama.cpp's chain without filling
its list of candidates. A round takes engines and stacks in a shuffled order; the first one warms up and is
thrown away.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.markdown import table
from benchmarks.peer import Peer
from unspool import _native
from unspool.backend.base import BLOCK_SIZE, StepBatch
from unspool.backend.cpu import CpuBackend
from unspool.engine.plans import PlannedRow, plan_of
from unspool.model.loader import load
from unspool.sampling.plan import SamplePlan
from unspool.sampling.rules import Facts, NoiseSource
from unspool.sampling.sampler import sample
from unspool.sampling.settings import RuleSettings, compile_chain

Rows = npt.NDArray[np.float32]

TEXT = """The harbour was quiet when the first boats came back. Nets lay in heaps along the wall, and two
women sorted the catch by lamplight: herring in one crate, mackerel in another, and everything too small to
sell in a bucket for the cats. Nobody spoke about the storm. Three days earlier it had taken the roof off the
chandler's shop and pushed the old ferry against the pier, where it still leaned. The mayor had promised money
for repairs, but everyone knew how long such promises took. So they worked on, as they did every morning, and
waited for the sun to come up over the breakwater and show them what else was broken."""
PENALIZED = 300
"""Distinct tokens that a penalty acts on."""
WIDE = 262_144
"""The largest vocabularies have as many tokens."""


@dataclass(frozen=True)
class Stack:
    """A stack of rules, as each engine has it; None where it lacks one of them."""

    title: str
    settings: RuleSettings
    transformers: tuple[tuple[str, Any], ...] | None = ()
    llama_cpp: tuple[tuple[Any, ...], ...] | None = ()
    penalized: bool = False


Measure = Callable[[Stack, str], float | None]
"""Seconds of one pass over the rows of a name; None where the engine lacks a rule."""

EVERY_TRUNCATION = RuleSettings(
    temperature=0.8,
    top_n_sigma=3.0,
    min_p=1e-4,
    top_p=0.99,
    typical_p=0.98,
    epsilon_cutoff=1e-4,
    eta_cutoff=1e-3,
    top_a=0.01,
    tail_free=0.99,
    top_h=0.95,
    p_less=True,
    xtc_probability=0.5,
)

STACKS = (
    Stack("greedy", RuleSettings(top_k=1), (("TopK", 1),), (("top_k", 1),)),
    Stack("nothing: the whole vocabulary", RuleSettings()),
    Stack(
        "temperature, top-k 50",
        RuleSettings(temperature=0.8, top_k=50),
        (("Temperature", 0.8), ("TopK", 50)),
        (("temp", 0.8), ("top_k", 50)),
    ),
    Stack(
        "repetition penalty, temperature, top-k 50, top-p 0.95",
        RuleSettings(repetition_penalty=1.1, temperature=0.8, top_k=50, top_p=0.95),
        (("RepetitionPenalty", 1.1), ("Temperature", 0.8), ("TopK", 50), ("TopP", 0.95)),
        (("penalties", PENALIZED, 1.1, 0.0, 0.0), ("temp", 0.8), ("top_k", 50), ("top_p", 0.95)),
        penalized=True,
    ),
    Stack(
        "temperature, min-p 0.05",
        RuleSettings(temperature=0.8, min_p=0.05),
        (("Temperature", 0.8), ("MinP", 0.05)),
        (("temp", 0.8), ("min_p", 0.05)),
    ),
    Stack("top-p 0.95", RuleSettings(top_p=0.95), (("TopP", 0.95),), (("top_p", 0.95),)),
    Stack(
        "temperature, top-p 0.95",
        RuleSettings(temperature=0.8, top_p=0.95),
        (("Temperature", 0.8), ("TopP", 0.95)),
        (("temp", 0.8), ("top_p", 0.95)),
    ),
    Stack("typical 0.95", RuleSettings(typical_p=0.95), (("Typical", 0.95),), (("typical", 0.95),)),
    Stack("epsilon 3e-4", RuleSettings(epsilon_cutoff=3e-4), (("Epsilon", 3e-4),), None),
    Stack("eta 3e-4", RuleSettings(eta_cutoff=3e-4), (("Eta", 3e-4),), None),
    Stack("top-n-sigma 1", RuleSettings(top_n_sigma=1.0), None, (("top_n_sigma", 1.0),)),
    Stack("tail-free 0.95", RuleSettings(tail_free=0.95), None, None),
    Stack("top-H 0.4", RuleSettings(top_h=0.4), None, None),
    Stack("p-less", RuleSettings(p_less=True), None, None),
    Stack("XTC 1, 0.1", RuleSettings(xtc_probability=1.0), None, (("xtc", 1.0, 0.1),)),
    Stack("mirostat 1", RuleSettings(mirostat=1), None, (("mirostat", 5.0, 0.1),)),
    Stack("mirostat 2", RuleSettings(mirostat=2), None, (("mirostat_v2", 5.0, 0.1),)),
    Stack("adaptive-p 0.3", RuleSettings(adaptive_target=0.3), None, None),
    Stack("every truncation, top-k 50 too", replace(EVERY_TRUNCATION, top_k=50), None, None),
    Stack("every truncation but top-k", EVERY_TRUNCATION, None, None),
)


@dataclass
class Results:
    """Microseconds a row, a value a round, by rows, stack and engine."""

    microseconds: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, rows: str, stack: Stack, engine: str, value: float) -> None:
        """One engine's turn."""
        of_stack = self.microseconds.setdefault(rows, {}).setdefault(stack.title, {})
        of_stack.setdefault(engine, []).append(1e6 * value)

    def text(self, rows: str, stack: Stack, engine: str) -> str:
        """The median of one cell."""
        values = self.microseconds[rows][stack.title].get(engine)
        return f"{median(values):,.0f}" if values else ""


def rows_of_model(model: str, count: int) -> Rows:
    """[count, vocabulary] logits after each of the last tokens of a text."""
    loaded = load(model)
    ids = loaded.tokenizer.encode(TEXT)
    n, blocks = len(ids), -(-len(ids) // BLOCK_SIZE)
    backend = CpuBackend(loaded.spec, loaded.tensors)
    backend.allocate(blocks)
    step = StepBatch(
        tokens=np.array(ids, np.int32),
        positions=np.arange(n, dtype=np.int32),
        slots=np.arange(n, dtype=np.int32),
        parents=np.arange(-1, n - 1, dtype=np.int32),
        run_starts=np.array([0, n], np.int32),
        block_table=np.arange(blocks, dtype=np.int32)[None],
        context_lens=np.zeros(1, np.int32),
        rows=np.arange(n - count, n, dtype=np.int32),
        hidden_rows=np.empty(0, np.int32),
    )
    return backend.forward(step).logits.numpy().copy()


class Session:
    """The rows, and every engine's way to sample from them."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        of_model = rows_of_model(arguments.model, arguments.rows)
        rng = np.random.default_rng(0)
        self.rows = {
            "the model's rows": of_model,
            "random rows": (3 * rng.standard_normal(of_model.shape)).astype(np.float32),
            f"random rows of {WIDE:,}": (3 * rng.standard_normal((len(of_model), WIDE))).astype(np.float32),
        }
        self.history: list[int] = rng.permutation(of_model.shape[1])[:PENALIZED].tolist()
        self.pool = _native.Pool(1)
        self.plans = {of.title: self._plan(of, len(of_model)) for of in STACKS}
        self.engines: dict[str, Measure] = {
            f"unspool, {name}": self._natively(name) for name in _native.instruction_sets()
        }
        self.engines["NumPy reference"] = self._by_reference
        self._add_transformers()
        if arguments.llama_cpp_python:
            self.llama_cpp = self._start_llama_cpp(arguments.llama_cpp_python, stack)
            self.engines["llama.cpp"] = self._by_llama_cpp

    def _plan(self, stack: Stack, count: int) -> SamplePlan:
        chain = compile_chain(stack.settings)
        memory = chain.memory([])
        if memory is not None and stack.penalized:
            for token in self.history:
                memory.extend(token, Facts(0.0, 0.0))
        return plan_of(
            [PlannedRow(n, chain, 0, len(chain.rules), memory, NoiseSource(n, n)) for n in range(count)]
        )

    def _natively(self, instruction_set: str) -> Measure:
        def measure(stack: Stack, rows: str) -> float:
            arrays = self.plans[stack.title].arrays()
            start = time.perf_counter()
            _native.sample(self.pool, instruction_set, self.rows[rows], *arrays)
            return time.perf_counter() - start

        return measure

    def _by_reference(self, stack: Stack, rows: str) -> float:
        start = time.perf_counter()
        sample(self.rows[rows], self.plans[stack.title])
        return time.perf_counter() - start

    def _start_llama_cpp(self, python: Path, stack: ExitStack) -> Peer:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = {name: str(folder / f"{place}.npy") for place, name in enumerate(self.rows)}
        for name, file in files.items():
            np.save(file, self.rows[name])
        return stack.enter_context(Peer("llama_cpp_sampling", python, {"rows": files}))

    def _by_llama_cpp(self, stack: Stack, rows: str) -> float | None:
        if stack.llama_cpp is None:
            return None
        job = {"row": rows, "samplers": stack.llama_cpp, "history": self.history if stack.penalized else []}
        return float(self.llama_cpp.ask(job)["seconds"])

    def _add_transformers(self) -> None:
        try:
            import torch
            import transformers
        except ImportError:
            return
        torch.set_num_threads(1)
        history = torch.tensor([self.history])

        def measure(stack: Stack, rows: str) -> float | None:
            if stack.transformers is None:
                return None
            processors = transformers.LogitsProcessorList(
                maker_of(transformers, name)(value) for name, value in stack.transformers
            )
            scores = torch.from_numpy(self.rows[rows])
            start = time.perf_counter()
            for row in scores:
                torch.multinomial(processors(history, row[None]).softmax(dim=-1), 1)
            return time.perf_counter() - start

        self.engines["Transformers"] = measure


def maker_of(transformers: Any, name: str) -> Any:
    """Transformers' class of a rule."""
    kind = "Processor" if name == "RepetitionPenalty" else "Warper"
    return getattr(transformers, f"{name}Logits{kind}")


def run(arguments: argparse.Namespace) -> tuple[Results, list[str]]:
    """All rounds; the engines' names."""
    results = Results()
    with ExitStack() as stack:
        session = Session(arguments, stack)
        results.microseconds.update((rows, {}) for rows in session.rows)  # their order in the report
        turns = [(of, rows, name) for of in STACKS for rows in session.rows for name in session.engines]
        for turn in range(arguments.rounds + 1):
            random.shuffle(turns)
            for of, rows, name in turns:
                seconds = session.engines[name](of, rows)
                if turn > 0 and seconds is not None:
                    results.add(rows, of, name, seconds / len(session.rows[rows]))
        return results, list(session.engines)


def report(results: Results, engines: list[str]) -> str:
    """A table for each kind of rows."""
    parts = []
    for rows in results.microseconds:
        cells = [[of.title, *(results.text(rows, of, engine) for engine in engines)] for of in STACKS]
        parts += [f"Microseconds a row, {rows}:", table(["", *engines], cells)]
    return "\n\n".join(parts)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.sampling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="an alias or a .gguf file (default: smollm2)")
    parser.add_argument("--llama-cpp-python", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--rows", type=int, default=16, help="rows of each kind (default: 16, at most 100)")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or not 1 <= arguments.rows <= 100:
        parser.error("--rounds must be at least 1, --rows from 1 to 100")
    return arguments


def main() -> None:
    """Measure, and print Markdown."""
    arguments = parse_arguments()
    results, engines = run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results.microseconds, indent=1) + "\n")
    print(report(results, engines))


if __name__ == "__main__":
    main()
