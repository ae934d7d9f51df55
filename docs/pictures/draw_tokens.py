"""Draw docs/pictures/tokens.svg: what the model thought of each token of a short text.

    python docs/pictures/draw_tokens.py

Needs the default model; the same seed draws the same tokens everywhere.
"""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from unspool import LLM, Token

PROMPT = "My favourite thing about the sea is"
SETTINGS = {"max_tokens": 10, "temperature": 1.0, "top_p": 0.9, "seed": 5, "logprobs": 4}
ROW, TOP, BAR = 30, 92, 150
COLUMNS = {
    "token": 20,
    "probability": 150,
    "rank from 0": 375,
    "entropy, nats": 435,
    "kept by top-p 0.9": 515,
    "the model's favourites": 660,
}
WIDTH = 1120


def text(x: float, y: float, words: str, style: str = "") -> str:
    """One line of text at a place."""
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def percent(p: float) -> str:
    """A probability as a reader wants it."""
    return "<1%" if p < 0.01 else f"{p:.0%}"


def token_row(token: Token, y: int) -> list[str]:
    """A token, its probability as a bar, its rank, the row's entropy, and the alternatives."""
    p = math.exp(token.logprob)
    favourites = " · ".join(f"{a.text!r} {percent(math.exp(a.logprob))}" for a in token.top_logprobs)
    x = list(COLUMNS.values())
    return [
        text(x[0], y, repr(token.text), 'class="token"'),
        f'<rect x="{x[1]}" y="{y - 12}" width="{BAR}" height="14" class="track"/>',
        f'<rect x="{x[1]}" y="{y - 12}" width="{max(2.0, BAR * p):.1f}" height="14" class="bar"/>',
        text(x[1] + BAR + 8, y, f"{p:.1%}"),
        text(x[2], y, f"{token.rank}"),
        text(x[3], y, f"{token.entropy:.2f}"),
        text(x[4], y, f"{token.kept:,}"),
        text(x[5], y, favourites, 'class="quiet"'),
    ]


def main() -> None:
    """Generate and draw."""
    with LLM() as llm:
        result = llm.generate(PROMPT, **SETTINGS)  # type: ignore[arg-type]
    height = TOP + ROW * len(result.tokens) - 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="14">',
        "<style>text{font-family:ui-monospace,Menlo,Consolas,monospace;fill:#24292f}.token{font-weight:bold}"
        ".quiet{fill:#6e7781}.head{fill:#6e7781;font-size:12px}.bar{fill:#0969da}.track{fill:#eaeef2}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        text(20, 34, f"{PROMPT}{result.text}", 'class="token"'),
        *(text(x, 66, name, 'class="head"') for name, x in COLUMNS.items()),
    ]
    for i, token in enumerate(result.tokens):
        lines += token_row(token, TOP + ROW * i)
    picture = Path(__file__).with_name("tokens.svg")
    picture.write_text("\n".join([*lines, "</svg>"]) + "\n")
    print(picture)


if __name__ == "__main__":
    main()
