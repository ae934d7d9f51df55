"""Beam search: seconds beside Transformers and CTranslate2, and the cache that beams take, in one run.

    python -m benchmarks.search --transformers-python PEER/bin/python --ctranslate2-python PEER/bin/python

A round takes the widths in turn, and at each the engines in a shuffled order. The first round warms up and is
thrown away; a ratio is taken within a round. Prompts of unequal texts; every result has the same number of
tokens, as the end of text is barred.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.command_line import parser_of, say_what_is_skipped
from benchmarks.machine import Machine
from benchmarks.markdown import table
from benchmarks.peer import Peer
from benchmarks.spread import Spread
from unspool import LLM, Beam
from unspool.backend.threads import default_threads
from unspool.cache import BLOCK_SIZE, blocks_for_tokens

PEERS = ("transformers", "ctranslate2")
WIDTHS = (1, 4, 8)
TOKENS = 128
LONG_PROMPT = 1000
PROMPTS = (
    "The history of the city begins with a small harbour",
    "In physics, the word energy means",
    "She opened the door and saw that",
    "The best way to learn a language is",
    "Once there was a fisherman who",
)


@dataclass
class Results:
    """Everything measured, a value a round."""

    machine: Machine
    versions: dict[str, str]
    seconds: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    """Of one prompt's search, by width and engine."""
    memory: dict[int, int] = field(default_factory=dict)
    """The most blocks that a search after a long prompt held, by width."""

    def ratio(self, width: int, engine: str) -> Spread:
        """How many times as long as unspool an engine took, round by round."""
        seconds = self.seconds[width]
        return Spread.of([a / b for a, b in zip(seconds[engine], seconds["unspool"], strict=True)])


def search(llm: LLM, prompt: list[int], width: int) -> float:
    """Seconds of one search."""
    strategy = Beam(width) if width > 1 else None
    begin = time.perf_counter()
    made = llm.generate(prompt, strategy=strategy, temperature=0, max_tokens=TOKENS, suppress_eos=True)
    seconds = time.perf_counter() - begin
    assert len(made.token_ids) == TOKENS
    return seconds


def most_blocks(llm: LLM, width: int) -> int:
    """The most cache blocks that beams after a prompt of ``LONG_PROMPT`` tokens hold at one time."""
    engine, most = llm.engine, 0
    prompt = [1000 + 7 * i % 20_000 + width for i in range(LONG_PROMPT)]
    from unspool.params import SamplingParams

    request = llm.prepare(prompt, SamplingParams(strategy=Beam(width), max_tokens=TOKENS, suppress_eos=True))
    flight = engine.submit(request)

    def look() -> None:
        nonlocal most
        held = {int(block) for b in engine.scheduler.running for t in b.tracks for block in t.table.blocks}
        most = max(most, len(held))

    engine.drive(lambda: flight.done, look)
    flight.generation()
    return most


def measure(arguments: Any) -> Results:
    """All rounds."""
    threads = arguments.threads or default_threads()
    with ExitStack() as stack:
        llm = LLM(arguments.model, threads=threads, cache_tokens=8192, prefix_cache=False)
        start = {"model": str(llm.path), "threads": threads}
        peers = {}
        for name, module in (("Transformers", "transformers"), ("CTranslate2", "ctranslate2")):
            python = getattr(arguments, f"{module}_python")
            if python:
                peers[name] = stack.enter_context(Peer(f"{module}_search", python, start))
        results = Results(
            Machine.of(threads, llm.engine.main.backend.instruction_set),  # type: ignore[attr-defined]
            {name: peer.started["version"] for name, peer in peers.items()},
        )
        for round_number in range(arguments.rounds + 1):
            prompt = llm.tokenizer.encode(PROMPTS[round_number % len(PROMPTS)])
            for width in WIDTHS:
                engines = ["unspool", *peers]
                random.shuffle(engines)
                for engine in engines:
                    if engine == "unspool":
                        seconds = median(search(llm, prompt, width) for _ in range(3))
                    else:
                        job = {"prompt": prompt, "width": width, "tokens": TOKENS}
                        seconds = peers[engine].ask(job)["seconds"]
                    if round_number:
                        results.seconds.setdefault(width, {}).setdefault(engine, []).append(seconds)
                print(f"round {round_number}, width {width}", file=sys.stderr)
        results.memory = {width: most_blocks(llm, width) for width in WIDTHS}
    return results


def report(results: Results) -> str:
    """Tables of the results."""
    peers = [name for name in results.seconds[WIDTHS[0]] if name != "unspool"]
    rows = []
    for width, seconds in results.seconds.items():
        row = [f"beam {width}" if width > 1 else "greedy", f"{TOKENS / median(seconds['unspool']):,.0f}"]
        for name in sorted(peers):
            row.append(
                f"{TOKENS / median(seconds[name]):,.1f} ({results.ratio(width, name).text(1, unit='x')})"
            )
        rows.append(row)
    names = [f"{name} {results.versions[name]}" for name in sorted(peers)]
    speed = table(["tokens/s of the text", "unspool", *names], rows)
    alone = blocks_for_tokens(LONG_PROMPT + TOKENS)
    memory = table(
        [f"after {LONG_PROMPT:,} tokens", "blocks", "of one branch alone", "of branches that share nothing"],
        [
            [f"width {width}", str(most), f"{most / alone:.2f}x", f"{alone * width:,}"]
            for width, most in results.memory.items()
        ],
    )
    return f"{results.machine.text()}\n\n{speed}\n\n{memory}\n\nA block holds {BLOCK_SIZE} tokens."


def main() -> None:
    """Measure and print."""
    parser = parser_of("search", __doc__, PEERS)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--threads", type=int, help="of every engine (default: physical cores to use)")
    arguments = parser.parse_args()
    say_what_is_skipped(arguments, PEERS)
    results = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(results), indent=1) + "\n")
    print(report(results))


if __name__ == "__main__":
    main()
