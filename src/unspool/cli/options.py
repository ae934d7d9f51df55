"""The options that commands share, each with the meaning of the setting it is named for."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from unspool.cli.terminal import as_text
from unspool.errors import ParameterError

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="An alias (see 'unspool models'), a path to a .gguf file, or a Hugging Face id.",
    ),
]
Threads = Annotated[int | None, typer.Option(help="Processor threads; the physical cores by default.")]
CacheTokens = Annotated[int | None, typer.Option(help="Size of the key-value cache in tokens.")]
CacheKind = Annotated[
    str,
    typer.Option(
        "--cache-type",
        help="What keys and values are kept in: float16, bfloat16, float32, or int8 for half the memory.",
    ),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", "-t", help="The most tokens to generate.")]
Temperature = Annotated[float | None, typer.Option(help="Divides the logits; 0 is greedy, 1 is off.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k most probable tokens; 0 is off.")]
TopP = Annotated[float | None, typer.Option(help="Keep the smallest set with this probability; 1 is off.")]
MinP = Annotated[float | None, typer.Option(help="Keep tokens this probable beside the best; 0 is off.")]
Preset = Annotated[
    str | None, typer.Option(help="Settings for a task (see 'unspool presets'); other options win.")
]
Order = Annotated[
    str | None,
    typer.Option(
        help="The rules' order: an engine's name (see 'unspool presets'), or names joined by commas."
    ),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Makes tokens in scope rarer above 1; 1 is off.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Subtracted for each time that a token is in scope; 0 is off.")
]
PresencePenalty = Annotated[float | None, typer.Option(help="Subtracted if a token is in scope; 0 is off.")]
PenaltyScope = Annotated[
    str | None, typer.Option(help="What penalties see: output, all, or a number of last tokens.")
]
Stop = Annotated[
    list[str] | None, typer.Option(help="A string that ends the text; may be given several times.")
]
StopTokenId = Annotated[
    list[int] | None, typer.Option(help="A token id that ends the text; may be given several times.")
]
IncludeStop = Annotated[bool, typer.Option("--include-stop", help="Keep what ended the text.")]
ShowSpecial = Annotated[bool, typer.Option("--show-special", help="Show special tokens as text.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of text.")]
Seed = Annotated[int | None, typer.Option(help="Fixes the draws; drawn, and shown, if not given.")]
Samples = Annotated[int | None, typer.Option("--n", "-n", help="How many samples to draw; 1 by default.")]
Logprobs = Annotated[
    int | None, typer.Option(help="How many alternatives to report for each token, with --json.")
]
PromptLogprobs = Annotated[
    int | None, typer.Option(help="The same for the prompt's tokens, with their own figures; 0 or more.")
]
Trace = Annotated[bool, typer.Option("--trace", help="Report what each rule did to each token's row.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of SamplingParams, such as xtc_probability=0.5 or 'bad_words=[\"um\"]': "
        "VALUE is JSON, a word or a number; may be given several times.",
    ),
]


def settings_of(pairs: list[str] | None, **named: Any) -> Any:
    """The settings of a command line: those options that are not None, and the pairs of ``--set``.

    ``--order`` and ``--penalty-scope`` come as typed, and are read here.

    Raises ``ParameterError`` for a pair that is none, or a setting that is given twice.
    """
    settings = {
        name: READERS[name](value) if name in READERS else value
        for name, value in named.items()
        if value is not None
    }
    for pair in pairs or ():
        name, equals, value = as_text(pair, "--set").partition("=")
        if not equals:
            raise ParameterError(f"--set takes NAME=VALUE, such as top_a=0.2, not {pair!r}")
        if name.strip() in settings:
            raise ParameterError(f"{name.strip()} is given twice")
        settings[name.strip()] = read_value(value.strip())
    return settings


def read_value(text: str) -> Any:
    """A setting's value as typed: none, true, false, a number, JSON, or else the text itself."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for read in (json.loads, float):
        with suppress(ValueError, RecursionError):
            return read(text)
    return text


def order(text: str) -> str | tuple[str, ...]:
    """``--order`` as the setting has it: an engine's name, or the names of rules."""
    from unspool.sampling.presets import DEFAULT_ORDER

    names = tuple(name.strip() for name in text.split(","))
    return names if len(names) > 1 or names[0] in DEFAULT_ORDER else text


def penalty_scope(text: str) -> str | int:
    """``--penalty-scope`` as the setting has it. Raises ``ParameterError``."""
    if text in ("output", "all"):
        return text
    try:
        return int(text)
    except ValueError:
        raise ParameterError(
            f'penalty_scope must be "output", "all" or a number of tokens, not {text!r}'
        ) from None


READERS: dict[str, Callable[[str], Any]] = {"order": order, "penalty_scope": penalty_scope}
"""The options that are typed in another form than their settings have."""
