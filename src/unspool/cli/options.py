"""The options that commands share, each with the meaning of the setting it is named for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", "-t", help="The most tokens to generate.")]
Temperature = Annotated[float | None, typer.Option(help="Divides the logits; 0 is greedy, 1 is off.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k most probable tokens; 0 is off.")]
TopP = Annotated[float | None, typer.Option(help="Keep the smallest set with this probability; 1 is off.")]
MinP = Annotated[float | None, typer.Option(help="Keep tokens this probable beside the best; 0 is off.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Makes tokens in scope rarer above 1; 1 is off.")
]
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
Samples = Annotated[int, typer.Option("--n", "-n", help="How many samples to draw.")]
Logprobs = Annotated[int, typer.Option(help="How many alternatives to report for each token, with --json.")]


def given(**settings: Any) -> Any:
    """The settings that were given on the command line: those that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def penalty_scope(text: str | None) -> str | int | None:
    """``--penalty-scope`` as the setting has it. Raises ``ParameterError``."""
    if text is None or text in ("output", "all"):
        return text
    try:
        return int(text)
    except ValueError:
        raise ParameterError(
            f'penalty_scope must be "output", "all" or a number of tokens, not {text!r}'
        ) from None
