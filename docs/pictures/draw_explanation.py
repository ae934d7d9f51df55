"""Draw docs/pictures/explanation.svg: what each rule makes of the law of a next token.

    python docs/pictures/draw_explanation.py

Needs the default model. Draws the law of a chain's first rule, of its first two, and so on.
"""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from unspool import LLM, Distribution

PROMPT = "The sea was calm, the sky was clear, and the"
STAGES: dict[str, dict[str, Any]] = {
    "the model's own law": {},
    "repetition_penalty 1.2": {"repetition_penalty": 1.2, "penalty_scope": "all"},
    "temperature 0.7": {"temperature": 0.7},
    "top_k 20": {"top_k": 20},
    "top_p 0.8": {"top_p": 0.8},
}
ORDER = ("repetition_penalty", "temperature", "top_k", "top_p")
SHOWN = 12
ROW, TOP, LEFT, STAGE, BAR = 30, 118, 130, 196, 112
WIDTH = LEFT + STAGE * len(STAGES) + 10


def text(x: float, y: float, words: str, style: str = "") -> str:
    """One line of text at a place."""
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def head(x: int, stage: str, law: Distribution) -> list[str]:
    """What a column shows, and how many candidates with which entropy its law has."""
    return [
        text(x, 66, stage, 'class="token" font-size="13"'),
        text(x, 86, f"{len(law):,} kept, {law.entropy:.2f} nats", 'class="head"'),
    ]


def cell(x: int, y: int, p: float, largest: float) -> list[str]:
    """A probability as a bar, and in percent."""
    if p == 0:
        return [text(x, y, "out", 'class="quiet"')]
    return [
        f'<rect x="{x}" y="{y - 12}" width="{BAR}" height="14" class="track"/>',
        f'<rect x="{x}" y="{y - 12}" width="{max(2.0, BAR * p / largest):.1f}" height="14" class="bar"/>',
        text(x + BAR + 8, y, "<0.1%" if p < 0.0005 else f"{p:.1%}"),
    ]


def laws_of(llm: LLM) -> list[Distribution]:
    """The law of each stage: that of all settings up to its own."""
    laws: list[Distribution] = []
    settings: dict[str, Any] = {}
    for added in STAGES.values():
        settings |= added
        laws.append(llm.next_token(PROMPT, order=ORDER, **settings))
    return laws


def main() -> None:
    """Look, and draw."""
    with LLM() as llm:
        laws = laws_of(llm)
        best = {a.id: a.text for a in laws[0].top_logprobs} | {
            a.id: a.text for law in laws for a in law.top_processed_logprobs
        }
    ranked = sorted(best, key=lambda token: -max(law.probability(token) for law in laws))[:SHOWN]
    ranked.sort(key=lambda token: -laws[0].probability(token))
    largest = max(law.probability(token) for law in laws for token in ranked)
    largest = math.ceil(largest * 20) / 20
    height = TOP + ROW * len(ranked) - 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="14">',
        "<style>text{font-family:ui-monospace,Menlo,Consolas,monospace;fill:#24292f}.token{font-weight:bold}"
        ".quiet{fill:#6e7781}.head{fill:#6e7781;font-size:12px}.bar{fill:#0969da}.track{fill:#eaeef2}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        text(20, 34, f"{PROMPT} …", 'class="token"'),
    ]
    for column, (stage, law) in enumerate(zip(STAGES, laws, strict=True)):
        x = LEFT + STAGE * column
        lines += head(x, stage, law)
        for row, token in enumerate(ranked):
            lines += cell(x, TOP + ROW * row, law.probability(token), largest)
    lines += (
        text(20, TOP + ROW * row, repr(best[token]), 'class="token"') for row, token in enumerate(ranked)
    )
    picture = Path(__file__).with_name("explanation.svg")
    picture.write_text("\n".join([*lines, "</svg>"]) + "\n")
    print(picture)


if __name__ == "__main__":
    main()
