"""What ``benchmarks.serving`` measured, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.cache_use import LONGEST, SAMPLED_PROMPT, SAMPLED_TOKENS, SAMPLES, SHORTEST, CacheFigures
from benchmarks.machine import Machine
from benchmarks.markdown import table
from benchmarks.spread import Spread
from benchmarks.workload import BATCHES, Batch, MixedLoad
from unspool.engine.stats import EngineStats

UNSPOOL, LLAMA_CPP, OPENVINO = "unspool", "llama.cpp", "OpenVINO"


def outside_shares(before: EngineStats, after: EngineStats, seconds: float) -> dict[str, float]:
    """What is neither the forward pass nor sampling between two snapshots: scheduling and Python.

    ``"step"``: as a share of the steps' own time. ``"wall"``: of ``seconds``, so that what happens before,
    between and after steps counts too.
    """
    computing = after.forward_seconds - before.forward_seconds + after.sample_seconds - before.sample_seconds
    steps = after.step_seconds - before.step_seconds
    return {"step": 1 - computing / steps, "wall": 1 - computing / seconds}


@dataclass
class ServingResults:
    """Everything measured, a value a round."""

    machine: Machine
    model: str
    rounds: int
    versions: dict[str, str]
    load: MixedLoad
    """The mixed load, as the first round had it."""
    step_tokens: dict[str, int | None]
    """The most tokens that a step computes under the mixed load, by engine; ``None``: its default."""
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Generated tokens a second of whole wall time, by batch and engine."""
    outside: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """``outside_shares`` of unspool, by batch and name."""
    stream: dict[str, list[float]] = field(default_factory=dict)
    """Tokens a second of one answer after its first token, through ``AsyncLLM`` and by raw steps."""
    mixed: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """The fields of ``MixedFigures``, by engine and name."""
    cache: CacheFigures | None = None

    def ratio(self, batch: Batch, peer: str) -> str:
        """Tokens a second of unspool over a peer's, round by round, as text."""
        rates = self.rates[batch.name]
        if peer not in rates:
            return ""
        return Spread.of([a / b for a, b in zip(rates[UNSPOOL], rates[peer], strict=True)]).text(2)

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)


def report(results: ServingResults) -> str:
    """The results as Markdown."""
    versions = "; ".join(f"{name} {version}" for name, version in results.versions.items()) or "no peers"
    parts = [
        f"{results.machine.text()}.",
        f"{results.model}. {results.rounds} rounds; median (least-most). {versions}.",
    ]
    if results.rates:
        parts += throughput(results)
    if results.stream:
        parts.append(stream(results))
    if results.mixed:
        parts += [mixed_load(results.load), mixed(results)]
    if results.cache is not None:
        parts += cache(results.cache)
    return "\n\n".join(parts)


def throughput(results: ServingResults) -> list[str]:
    """Generated tokens a second of every batch, and what unspool takes beside its kernels."""
    peers = list(results.versions)
    rates_header = ["generated tokens/s", UNSPOOL, *peers, *[f"ratio to {p}" for p in peers]]
    rate_rows, outside_rows = [], []
    for batch in (b for b in BATCHES if b.name in results.rates):
        rates, outside = results.rates[batch.name], results.outside[batch.name]
        shown = [Spread.of(rates[e]).text() if e in rates else "" for e in (UNSPOOL, *peers)]
        rate_rows.append([batch.title, *shown, *[results.ratio(batch, peer) for peer in peers]])
        shares = [Spread.of(outside[of]).text(1, 100, "%") for of in ("step", "wall")]
        outside_rows.append([batch.title, *shares])
    outside_header = ["scheduling and Python", "of a step", "of wall time"]
    return [table(rates_header, rate_rows), table(outside_header, outside_rows)]


def stream(results: ServingResults) -> str:
    """One answer through ``AsyncLLM`` beside raw steps."""
    rates, raw = results.stream["AsyncLLM"], results.stream["raw steps"]
    share = Spread.of([a / b for a, b in zip(rates, raw, strict=True)])
    return (
        f"`AsyncLLM`, 1 request, context 32 to 160: {Spread.of(rates).text()} tokens/s after the first "
        f"token, {share.text(1, 100, '%')} of raw steps."
    )


def mixed_load(load: MixedLoad) -> str:
    """The mixed load in words."""
    return (
        f"Mixed load of {load.seconds:g} seconds, counted from {load.settle:g} on: {load.clients} clients "
        f"chat without a pause ({load.chat_prompt} tokens in, {load.chat_tokens} out) while a prompt of "
        f"{load.long_prompt:,} ({load.long_tokens} out) arrives every {load.interval:g} seconds."
    )


def mixed(results: ServingResults) -> str:
    """The mixed load's figures of every engine."""
    rows = [
        ["chats: time to first token, p50", "chat_first_p50"],
        ["chats: time to first token, p99", "chat_first_p99"],
        ["long prompts: time to first token, p50", "long_first_p50"],
        ["long prompts: time to first token, p99", "long_first_p99"],
        ["chats: between tokens, p50", "between_p50"],
        ["chats: between tokens, p99", "between_p99"],
        ["the same while a long prompt is computed, p99", "between_in_prefill_p99"],
        ["the same while no prompt is computed, median", "decode_only"],
    ]
    engines = list(results.mixed)
    shown = [
        [label, *[Spread.of(results.mixed[e][name]).text(1, 1000) for e in engines]] for label, name in rows
    ]
    stall = [Spread.of(results.mixed[e]["stall"]).text(2) for e in engines]
    chats = [Spread.of(results.mixed[e]["chats"]).text() for e in engines]
    limits = [str(results.step_tokens[e] or "default") for e in engines]
    return table(
        ["milliseconds", *engines],
        [
            *shown,
            ["the last but one over the last", *stall],
            ["chats counted", *chats],
            ["most tokens of a step", *limits],
        ],
    )


def cache(use: CacheFigures) -> list[str]:
    """Waste and sharing."""
    return [
        f"Cache waste on lengths from {SHORTEST} to {LONGEST:,}: {100 * use.waste_mean:.2f}% of the slots "
        f"held, the mean over time (most: {100 * use.waste_most:.2f}%).",
        f"{SAMPLES} samples of {SAMPLED_TOKENS} tokens after a prompt of {SAMPLED_PROMPT:,} hold "
        f"{use.sampled_blocks} blocks at most; the prompt's once and their own are {use.shared_blocks}, "
        f"without sharing {use.unshared_blocks}.",
    ]
