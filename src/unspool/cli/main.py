"""The command ``unspool``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import unspool
from unspool.cli.calc import calc
from unspool.cli.chat import chat
from unspool.cli.explain import explain
from unspool.cli.generate import generate
from unspool.cli.models import info, models, pull
from unspool.cli.presets import presets
from unspool.cli.terminal import warnings_as_notes
from unspool.errors import ParameterError, UnspoolError

app = typer.Typer(
    name="unspool",
    help="Generate text from a language model on this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (generate, chat, explain, presets, pull, models, info):
    app.command()(command)
app.add_typer(calc)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        print(f"unspool {unspool.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Generate text from a language model on this machine."""


def main() -> None:
    """Run the command line. Exit status 2 for a wrong argument, 1 for another error, 130 for Ctrl-C."""
    for name, errors in (("stdin", "surrogateescape"), ("stdout", "replace"), ("stderr", "replace")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors=errors)
    try:
        with warnings_as_notes():
            app(prog_name="unspool")
    except UnspoolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ParameterError) else 1)
    except OSError as error:  # what was written could not be: a full disk, a terminal that went away
        print(f"error: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
