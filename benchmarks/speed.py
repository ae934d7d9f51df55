"""Tokens a second: unspool beside other engines and beside what memory allows, in one run.

    python -m benchmarks.speed --llama-cpp-python PEER/bin/python --openvino-python PEER/bin/python

Each engine keeps its model loaded; the peers have processes of their own. A round takes the scenarios in a
shuffled order, and at each scenario the engines in a shuffled order, with a probe of the memory's bandwidth
just before and after unspool's turn. The first round warms up and is thrown away. A ratio is taken within a
round, between neighbours in time; tables show the median over rounds (and the least and the most).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.command_line import parser_of, say_what_is_skipped
from benchmarks.machine import Machine, probe_bandwidth
from benchmarks.markdown import table
from benchmarks.peer import Peer
from benchmarks.raw_steps import RawSteps
from benchmarks.scenario import SCENARIOS, Scenario, prompts_of
from benchmarks.spread import Spread
from unspool import LLM
from unspool.backend.threads import default_threads, shared_pool
from unspool.model.loader import load
from unspool.sampling.settings import RuleSettings

RAW, GENERATE = "unspool", "LLM.generate"
SAMPLED = {
    "temperature 0.8, top-k 50": RuleSettings(temperature=0.8, top_k=50),
    "temperature 0.8, top-p 0.95": RuleSettings(temperature=0.8, top_p=0.95),
    "no rule, the whole vocabulary": RuleSettings(),
}
Measure = Callable[[Scenario], float]


@dataclass
class Results:
    """Everything measured, a value a round."""

    machine: Machine
    model: str
    packed_bytes: int
    cache_bytes_per_token: int
    versions: dict[str, str]
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Tokens a second by scenario and engine."""
    bandwidth: dict[str, list[float]] = field(default_factory=dict)
    """Bytes a second by scenario: the mean of the probes just before and just after."""
    sampling: dict[str, list[float]] = field(default_factory=dict)
    """Share of a step that sampling takes, by rules and scenario."""

    def add(self, scenario: Scenario, rates: dict[str, float], bandwidth: float) -> None:
        """One round of one scenario."""
        for engine, rate in rates.items():
            self.rates.setdefault(scenario.name, {}).setdefault(engine, []).append(rate)
        self.bandwidth.setdefault(scenario.name, []).append(bandwidth)

    def ratio(self, scenario: Scenario, engine: str, other: str) -> Spread:
        """Tokens a second of one engine over another's, round by round."""
        rates = self.rates[scenario.name]
        return Spread.of([a / b for a, b in zip(rates[engine], rates[other], strict=True)])

    def limit_share(self, scenario: Scenario) -> Spread | None:
        """Bytes of weights read a second over the probed bandwidth, where one sequence decodes.

        Beyond a few hundred tokens of context the cache is counted too: a step reads it as well.
        """
        if scenario.sequences > 1 or scenario.steps == 0:
            return None
        cache = scenario.mean_context * self.cache_bytes_per_token if scenario.mean_context > 500 else 0
        pairs = zip(self.rates[scenario.name][RAW], self.bandwidth[scenario.name], strict=True)
        return Spread.of([rate * (self.packed_bytes + cache) / bandwidth for rate, bandwidth in pairs])

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)


class Session:
    """The engines of one run, all loaded."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.threads = arguments.threads or default_threads()
        self.pool = shared_pool(self.threads)
        loaded = load(arguments.model)
        self.raw = RawSteps(loaded, self.threads)
        self.llm = LLM(loaded.path, threads=self.threads, cache_tokens=4096)
        self.engines: dict[str, Measure] = {RAW: self.raw.measure, GENERATE: self._generate}
        self.results = Results(
            Machine.of(self.threads, self.raw.backend.instruction_set),
            loaded.path.name,
            self.raw.backend.packed_bytes,
            loaded.spec.cache_bytes_per_token(),
            {},
        )
        start = {"model": str(loaded.path), "threads": self.threads}
        if arguments.llama_cpp_python:
            self._add("llama.cpp", Peer("llama_cpp", arguments.llama_cpp_python, start), stack)
        if arguments.openvino_python:
            for pipeline in ("paged", "stateful"):
                peer = Peer("openvino", arguments.openvino_python, {**start, "pipeline": pipeline})
                self._add(f"OpenVINO {pipeline}", peer, stack)

    def measure(self, scenario: Scenario) -> tuple[dict[str, float], float]:
        """Tokens a second of every engine in a random order, and the bandwidth around unspool's own turn,
        which raw steps and ``LLM.generate`` share.
        """
        names = [name for name in self.engines if name != GENERATE]
        random.shuffle(names)
        rates, bandwidth = {}, 0.0
        for name in names:
            if name != RAW:
                rates.update(self._turn(scenario, [name]))
                continue
            before = probe_bandwidth(self.pool)
            rates.update(self._turn(scenario, [RAW, GENERATE] if scenario.name == "decode-1" else [RAW]))
            bandwidth = (before + probe_bandwidth(self.pool)) / 2
        return rates, bandwidth

    def _turn(self, scenario: Scenario, names: list[str]) -> dict[str, float]:
        """Tokens a second of engines that take turns within one, by the median of the scenario's repeats."""
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(scenario.repeats):
            for name in random.sample(names, len(names)):
                seconds[name].append(self.engines[name](scenario))
        return {name: scenario.tokens / median(of) for name, of in seconds.items()}

    def measure_sampling(self, scenario: Scenario) -> None:
        """Add one round of the share that sampling takes."""
        for title, rules in SAMPLED.items():
            share = self.raw.sampling_share(scenario, rules)
            self.results.sampling.setdefault(f"{title}, {scenario.title}", []).append(share)

    def _add(self, name: str, peer: Peer, stack: ExitStack) -> None:
        stack.enter_context(peer)
        self.results.versions[name] = peer.started["version"]
        self.engines[name] = lambda scenario: float(peer.ask({"scenario": scenario.to_dict()})["seconds"])

    def _generate(self, scenario: Scenario) -> float:
        """The steps after the first token, by ``generate``'s own clock."""
        prompt = prompts_of(scenario)[0]
        made = self.llm.generate(prompt, temperature=0.0, max_tokens=scenario.steps + 1, ignore_eos=True)
        if made.timing.decoded_tokens != scenario.steps:
            raise RuntimeError(f"{made.timing.decoded_tokens} tokens were decoded, not {scenario.steps}")
        return made.timing.decode_seconds


def run(arguments: argparse.Namespace) -> Results:
    """All rounds."""
    scenarios = [s for s in SCENARIOS if not arguments.only or s.name in arguments.only]
    with ExitStack() as stack:
        session = Session(arguments, stack)
        for number in range(arguments.rounds + 1):
            for scenario in random.sample(scenarios, len(scenarios)):
                rates, bandwidth = session.measure(scenario)
                if number > 0:
                    session.results.add(scenario, rates, bandwidth)
                    if scenario.name in ("decode-1", "decode-32"):
                        session.measure_sampling(scenario)
                shown = ", ".join(f"{name} {rate:,.0f}" for name, rate in sorted(rates.items()))
                label = f"round {number}" if number else "warm-up"
                print(f"{label}: {scenario.name}: {shown}; {bandwidth / 1e9:.1f} GB/s", file=sys.stderr)
        return session.results


def report(results: Results) -> str:
    """The results as Markdown."""
    measured = [s for s in SCENARIOS if s.name in results.rates]
    peers = list(results.versions)
    header = ["tokens/s", RAW, *peers, *[f"ratio to {p}" for p in peers], "share of the limit"]
    rows = []
    for scenario in measured:
        rates = results.rates[scenario.name]
        share = results.limit_share(scenario)
        rows.append(
            [
                scenario.title,
                *[Spread.of(rates[engine]).text() for engine in (RAW, *peers)],
                *[results.ratio(scenario, RAW, peer).text(2) for peer in peers],
                share.text(0, 100, "%") if share else "",
            ]
        )
    return "\n\n".join([*conditions(results, measured), table(header, rows), *ends(results, measured)])


def conditions(results: Results, measured: list[Scenario]) -> list[str]:
    """What was measured, and on what."""
    rounds = len(results.bandwidth[measured[0].name])
    bandwidth = Spread.of([value for s in measured for value in results.bandwidth[s.name]])
    versions = "; ".join(f"{name} {version}" for name, version in results.versions.items()) or "no peers"
    return [
        f"{results.machine.text()}. Memory bandwidth probed: {bandwidth.text(1, 1e-9, ' GB/s')}.",
        f"{results.model}: {results.packed_bytes / 1e6:.1f} MB of weights read per step. "
        f"{rounds} rounds; median (least-most). {versions}.",
    ]


def ends(results: Results, measured: list[Scenario]) -> list[str]:
    """The figures that concern unspool alone."""
    lines = []
    for scenario in measured:
        if GENERATE in results.rates[scenario.name]:
            ratio = results.ratio(scenario, GENERATE, RAW)
            rate = Spread.of(results.rates[scenario.name][GENERATE])
            lines.append(
                f"`LLM.generate`, {scenario.title}: {rate.text()} tokens/s, "
                f"{ratio.text(1, 100, '%')} of raw steps."
            )
    for title, shares in results.sampling.items():
        lines.append(f"Sampling with {title}: {Spread.of(shares).text(2, 100, '%')} of a step.")
    return lines


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of("speed", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--threads", type=int, help="of every engine (default: physical cores to use)")
    parser.add_argument(
        "--only", action="append", choices=[s.name for s in SCENARIOS], help="a scenario; may be repeated"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
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
