"""The likelihood trap: what wider and wider beams do to probability and to repetition, on human text.

    python -m benchmarks.likelihood_trap --text wikitext.txt

The text's paragraphs are cut after so many words; each beginning is continued by sampling and by beams of
several widths, and beside these stands how the text itself went on. Human text is neither the most probable
nor repetitive; beams are both (Holtzman et al. 2020).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.markdown import table
from unspool import LLM, Beam
from unspool.params import SamplingParams

WIDTHS = (1, 2, 4, 8, 16)
BEGINNING, CONTINUATION = 32, 128
"""Tokens of each prompt, and of what follows."""


@dataclass
class Row:
    """One way to go on, over all prompts."""

    name: str
    logprob: float
    """Mean over the prompts of the mean log-probability of a token under the model's own law, in nats."""
    repeated: float
    """Mean share of 4-grams of tokens that came before in the same text (seq-rep-4, Welleck et al. 2020)."""
    distinct: float
    """Mean share of distinct tokens."""


def repeated_share(tokens: Sequence[int], n: int = 4) -> float:
    """1 - distinct n-grams / n-grams (Welleck et al. 2020, eq. 12)."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams)


def row_of(name: str, logprobs: Sequence[float], texts: Sequence[Sequence[int]]) -> Row:
    """The means over prompts."""
    return Row(
        name,
        fmean(logprobs),
        fmean(repeated_share(tokens) for tokens in texts),
        fmean(len(set(tokens)) / len(tokens) for tokens in texts),
    )


def passages(llm: LLM, path: Path, count: int) -> list[list[int]]:
    """Beginnings and continuations of the first paragraphs that are long enough, spread over the text."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    long = [line for line in lines if len(line) > 8 * (BEGINNING + CONTINUATION) and not line.startswith("=")]
    spread = long[:: max(1, len(long) // count)][:count]
    return [llm.tokenizer.encode(line)[: BEGINNING + CONTINUATION] for line in spread]


def measure(llm: LLM, passages: list[list[int]]) -> list[Row]:
    """All ways to go on, the human one first."""
    prompts = [passage[:BEGINNING] for passage in passages]
    human = [
        fmean(logprob for logprob in llm.score(passage).logprobs[BEGINNING:] if logprob is not None)
        for passage in passages
    ]
    rows = [row_of("human text", human, [passage[BEGINNING:] for passage in passages])]
    ways = {
        "sampled": SamplingParams(temperature=1.0, seed=1),
        "sampled, top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9, seed=1),
        **{
            f"beam {width}" if width > 1 else "greedy (beam 1)": SamplingParams(strategy=Beam(width))
            for width in WIDTHS
        },
    }
    for name, params in ways.items():
        made = llm.generate(prompts, params, max_tokens=CONTINUATION, suppress_eos=True)
        rows.append(row_of(name, [each.mean_logprob for each in made], [each.token_ids for each in made]))
        print(f"{name}: done", file=sys.stderr)
    return rows


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.likelihood_trap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", type=Path, required=True, help="human text, a paragraph a line")
    parser.add_argument("--model", default="smollm2", help="an alias or a .gguf file (default: smollm2)")
    parser.add_argument("--prompts", type=int, default=20, help="how many paragraphs (default: 20)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    llm = LLM(arguments.model)
    rows = measure(llm, passages(llm, arguments.text, arguments.prompts))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    header = ["", "log p a token", "repeated 4-grams", "distinct tokens"]
    cells = [
        [row.name, f"{row.logprob:.2f}", f"{100 * row.repeated:.1f}%", f"{100 * row.distinct:.0f}%"]
        for row in rows
    ]
    print(table(header, cells))


if __name__ == "__main__":
    main()
