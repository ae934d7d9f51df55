"""``unspool generate``: continue a prompt."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from unspool.cli import options
from unspool.cli.terminal import as_text, note, write
from unspool.errors import ParameterError

if TYPE_CHECKING:
    from unspool.llm import LLM
    from unspool.params import SamplingParams
    from unspool.results import Generation


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")],
    *,
    model: options.Model = "smollm2",
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a chat message instead of continuing it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line of figures at the end.")] = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    penalty_scope: options.PenaltyScope = None,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    include_stop: options.IncludeStop = False,
    show_special: options.ShowSpecial = False,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = None,
    n: options.Samples = 1,
    logprobs: options.Logprobs = 0,
    threads: options.Threads = None,
    cache_tokens: options.CacheTokens = None,
) -> None:
    """Continue PROMPT and print what comes, as it comes.

    The model sees the prompt as it is and goes on from it. To have an instruct model answer it, use --chat.
    A last line of figures goes to standard error.
    """
    from unspool.params import SamplingParams

    settings = options.given(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        penalty_scope=options.penalty_scope(penalty_scope),
        stop=stop,
        stop_token_ids=stop_token_id,
        include_stop=include_stop,
        skip_special_tokens=not show_special,
        ignore_eos=ignore_eos,
        seed=seed,
        n=n,
        logprobs=logprobs,
    )
    if logprobs and not as_json:
        raise ParameterError("--logprobs is reported with --json only: add --json, or leave it out")
    params = SamplingParams(**settings)
    text = read_prompt(prompt)

    from unspool.llm import LLM

    llm = LLM(model, threads=threads, cache_tokens=cache_tokens)
    result = print_json(llm, text, chat, params) if as_json else print_text(llm, text, chat, params)
    if not quiet:
        note(footer(result, llm))


def read_prompt(prompt: str) -> str:
    """The prompt, or for ``-`` all of standard input without its last line break.

    Raises ``ParameterError`` for bytes that are no text.
    """
    if prompt != "-":
        return as_text(prompt, "the prompt")
    return as_text(sys.stdin.read().removesuffix("\n"), "standard input")


def print_json(llm: LLM, text: str, chat: bool, params: SamplingParams) -> Generation:
    """Generate, then print the whole result as one line of JSON."""
    result = llm.chat(text, params) if chat else llm.generate(text, params)
    write(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
    return result


def print_text(llm: LLM, text: str, chat: bool, params: SamplingParams) -> Generation:
    """Print one sample's text as it comes, or several samples one after the other."""
    if params.n == 1:
        chunks = llm.stream_chat(text, params) if chat else llm.stream(text, params)
        streamed: Generation | None = None
        for chunk in chunks:
            write(chunk.text)
            streamed = chunk.generation
        write("\n")
        assert streamed is not None  # the last chunk has it
        return streamed
    result = llm.chat(text, params) if chat else llm.generate(text, params)
    for candidate in result.candidates:
        write(f"--- {candidate.index + 1} of {params.n} ---\n{candidate.text}\n")
    return result


def footer(result: Generation, llm: LLM) -> str:
    """One line of figures about a result."""
    reason = "ended by max_tokens"
    if isinstance(result.stop_reason, str):
        reason = f"stopped at {result.stop_reason!r}"
    elif result.stop_reason is not None:
        reason = f"stopped at {llm.tokenizer.id_to_token(result.stop_reason)}"
    parts = [
        f"{result.usage.prompt_tokens} + {result.usage.completion_tokens} tokens",
        f"{result.timing.tokens_per_second:.1f} tokens/s",
        f"first after {result.timing.time_to_first_token:.2f} s",
        f"seed {result.seed}",
        reason,
    ]
    if result.dropped_messages:
        parts.append(f"{result.dropped_messages} oldest messages dropped")
    return f"[{', '.join(parts)}]"
