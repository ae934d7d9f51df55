"""``unspool presets``: settings for tasks, and the orders in which other engines have the rules."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated, Any

import typer

from unspool.cli.terminal import write

MARGIN = " " * 14


def presets(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List what --preset and --order may name.

    A task's settings (--preset) are what is used where nothing else is set. An engine's order (--order) gives
    its law: its order of the rules, its scopes, its boundaries.
    """
    facts = known_presets()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    write("Tasks, for --preset\n")
    for name, task in facts["tasks"].items():
        settings = ", ".join(f"{setting} {value:g}" for setting, value in task["settings"].items())
        write(f"{name:<14}{settings}\n")
        write(paragraph(task["why"]))
    write("\nOrders of the rules, for --order\n")
    for name, engine in facts["orders"].items():
        write(paragraph(", ".join(engine["order"]), first=f"{name:<14}"))
        scopes = ", ".join(f"{rule} {scope}" for rule, scope in engine["scopes"].items())
        write(paragraph(f"scopes: {scopes}"))


def known_presets() -> dict[str, Any]:
    """Everything that there is to choose from, as plain data."""
    from unspool.sampling.presets import DEFAULT, PRESETS
    from unspool.task_presets import TASK_PRESETS

    return {
        "tasks": {
            name: {"settings": dict(task.settings), "why": task.why} for name, task in TASK_PRESETS.items()
        },
        "orders": {
            name: {
                "order": list(engine.order),
                "scopes": {rule: scope for rule, scope in engine.scopes.items() if rule in engine.order},
            }
            for name, engine in {"(default)": DEFAULT, **PRESETS}.items()
        },
    }


def paragraph(text: str, first: str = MARGIN) -> str:
    """Lines of at most 80 characters, indented."""
    return textwrap.fill(text, 80, initial_indent=first, subsequent_indent=MARGIN) + "\n"
