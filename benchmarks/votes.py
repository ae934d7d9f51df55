"""Self-consistency on word problems: the vote of many samples beside one greedy answer.

    python -m benchmarks.votes --problems gsm8k.jsonl --limit 20 --n 8

Each line of the file is ``{"question": ..., "answer": "... #### 18"}``, as GSM8K has them (Cobbe et al.
2021). Every problem is one request of up to ``n`` candidates, all computed together; a vote that is settled
ends early. A small model is rarely right: what is shown is how votes fare beside one answer, and their cost.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from unspool import LLM, Vote
from unspool.results import Generation

ANSWER = r"-?\$?[0-9][0-9,]*(?:\.[0-9]+)?"
"""The last number of a text."""
EXAMPLE = (
    "Question: A box holds 12 pens. How many pens are in 3 boxes?\n"
    "Answer: 3 boxes hold 3 * 12 = 36 pens. The answer is 36.\n\n"
    "Question: Tom had 15 apples and gave 4 to Ann. How many has he left?\n"
    "Answer: He has 15 - 4 = 11 apples. The answer is 11.\n\n"
)


def read(path: Path, limit: int) -> list[dict[str, str]]:
    """The first problems of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()[:limit]]


def right(extract: Vote, made: str, problem: dict[str, str]) -> bool:
    """Whether the answer in a text is that of the problem."""
    expected = extract.answer(problem["answer"].rpartition("####")[2])
    return extract.answer(made) == expected


def measure(llm: LLM, problems: list[dict[str, str]], n: int, tokens: int) -> list[dict[str, Any]]:
    """One row a problem."""
    vote = Vote(n, ANSWER)
    prompts = [f"{EXAMPLE}Question: {problem['question']}\nAnswer:" for problem in problems]
    asked: dict[str, Any] = {"max_tokens": tokens, "stop": "\n\n"}
    greedy: list[Generation] = llm.generate(prompts, temperature=0, **asked)
    voted: list[Generation] = llm.generate(prompts, select=vote, temperature=0.7, seed=1, **asked)
    rows = []
    for problem, one, many in zip(problems, greedy, voted, strict=True):
        assert many.choice is not None
        rows.append(
            {
                "greedy": right(vote, one.text, problem),
                "voted": right(vote, many.text, problem),
                "considered": many.choice.considered,
                "tally": [(str(each.answer), each.votes) for each in many.choice.tally],
                "expected": str(vote.answer(problem["answer"].rpartition("####")[2])),
                "drawn": many.timing.drawn_tokens,
            }
        )
    return rows


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.votes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--problems", type=Path, required=True, help="a .jsonl file of questions and answers")
    parser.add_argument("--model", default="smollm2", help="an alias or a .gguf file (default: smollm2)")
    parser.add_argument("--limit", type=int, default=20, help="how many problems (default: 20)")
    parser.add_argument("--n", type=int, default=8, help="candidates of each vote (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=120, help="of each candidate (default: 120)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    problems = read(arguments.problems, arguments.limit)
    rows = measure(LLM(arguments.model), problems, arguments.n, arguments.max_tokens)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows[:5]:
        votes = ", ".join(f"{answer}: {count}" for answer, count in row["tally"])
        print(f"expected {row['expected']}; votes of {row['considered']}: {votes}")
    count = len(rows)
    cells = [
        ["greedy", f"{sum(row['greedy'] for row in rows)} of {count}", "1"],
        [
            f"vote of up to {arguments.n}",
            f"{sum(row['voted'] for row in rows)} of {count}",
            f"{sum(row['considered'] for row in rows) / count:.1f}",
        ],
    ]
    print("\n" + table(["", "right", "candidates considered"], cells))


if __name__ == "__main__":
    main()
