"""Draw docs/pictures/steps.svg: what an engine computed in each step for a handful of requests.

    python docs/pictures/draw_steps.py

Needs the default model. The plan of a step depends on the requests alone, so that the picture is the same
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from unspool import LLM, SamplingParams
from unspool.engine.branch import Branch
from unspool.engine.flight import Flight

SYSTEM = "You are a patient teacher who explains one thing at a time and never uses a long word. " * 5
COLUMN, ROW, LEFT, TOP = 15, 34, 210, 66


@dataclass
class Asked:
    """One request: when it comes, and what was seen of it, step by step."""

    name: str
    arrives: int
    prompt: str
    max_tokens: int
    seen: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By step: what happened ("computed", "decoded", "waited") and how many tokens it was."""
    note: str = ""


REQUESTS = (
    Asked("A: a short prompt", 0, "The sea is", 44),
    Asked("B: another", 1, "A mountain is", 38),
    Asked("C: a long prompt", 6, SYSTEM + "What is a tide?", 22),
    Asked("D: begins like C", 8, SYSTEM + "What is a wave?", 22),
    Asked("E: needs more room", 22, "Once upon a time, " * 18, 14),
)


def run() -> int:
    """Let an engine with little room compute the requests; how many steps it took."""
    with LLM(cache_tokens=320) as llm:
        engine, step = llm.engine, 0
        plan = engine.scheduler.plan
        planned: list[Branch] = []

        def recorded() -> list[Branch]:
            planned[:] = plan()
            return list(planned)

        engine.scheduler.plan = recorded  # type: ignore[method-assign]
        flights = {}
        while step <= max(asked.arrives for asked in REQUESTS) or engine.busy:
            for asked in REQUESTS:
                if asked.arrives == step:
                    params = SamplingParams(max_tokens=asked.max_tokens, seed=1, ignore_eos=True)
                    flights[asked.name] = engine.submit(llm.prepare(asked.prompt, params), streaming=True)
            engine.step()
            computed = {branch.flight: branch for branch in planned}
            for asked in REQUESTS:
                flight = flights.get(asked.name)
                if flight is None or (flight.done and flight not in computed):
                    continue
                asked.note = note(flight)
                if flight in computed:
                    count = len(computed[flight].tracks[0].run) or 1
                    asked.seen[step] = ("decoded" if count == 1 else "computed", count)
                else:
                    asked.seen[step] = ("waited", 0)
            step += 1
    return step


def note(flight: Flight) -> str:
    """What is special about how a request fared."""
    if flight.preemptions:
        return "gave its place up once, and was computed again"
    return f"{flight.cached_tokens} prompt tokens found in the cache" if flight.cached_tokens else ""


def text(x: float, y: float, words: str, style: str = "") -> str:
    """One line of text at a place."""
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def row(asked: Asked, y: int) -> list[str]:
    """A request's cells."""
    lines = [text(16, y + 15, asked.name, 'class="name"')]
    lines.append(text(16, y + 28, asked.note, 'class="quiet"'))
    for step, (what, count) in asked.seen.items():
        x = LEFT + COLUMN * step
        lines.append(f'<rect x="{x}" y="{y}" width="{COLUMN - 2}" height="20" rx="2" class="{what}"/>')
        if what == "computed":
            lines.append(text(x + (COLUMN - 2) / 2, y + 14, str(count), 'class="count"'))
    return lines


def main() -> None:
    """Compute and draw."""
    steps = run()
    width, height = LEFT + COLUMN * steps + 20, TOP + ROW * len(REQUESTS) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12">',
        "<style>text{font-family:ui-monospace,Menlo,Consolas,monospace;fill:#24292f}.name{font-weight:bold}"
        ".quiet{fill:#6e7781;font-size:8px}.count{fill:#ffffff;font-size:8px;text-anchor:middle}"
        ".computed{fill:#8250df}.decoded{fill:#0969da}.waited{fill:#eaeef2}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        text(16, 26, "Each column is one forward pass over everything that it shows.", 'class="name"'),
    ]
    legend = (
        ("computed", "prompt tokens, how many"),
        ("decoded", "one token drawn"),
        ("waited", "waiting: for room, or for what another computes"),
    )
    for i, (what, words) in enumerate(legend):
        x = 16 + (0, 190, 340)[i]
        lines.append(f'<rect x="{x}" y="38" width="13" height="13" rx="2" class="{what}"/>')
        lines.append(text(x + 20, 49, words))
    for i, asked in enumerate(REQUESTS):
        lines += row(asked, TOP + ROW * i)
    for step in range(0, steps, 10):
        lines.append(text(LEFT + COLUMN * step, height - 14, f"step {step}", 'class="quiet"'))
    picture = Path(__file__).with_name("steps.svg")
    picture.write_text("\n".join([*lines, "</svg>"]) + "\n")
    print(picture)


if __name__ == "__main__":
    main()
