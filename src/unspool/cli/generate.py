"""``unspool generate``: continue a prompt."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from unspool.cli import options, search
from unspool.cli.terminal import as_text, note, write
from unspool.errors import ParameterError

if TYPE_CHECKING:
    from unspool.llm import LLM
    from unspool.params import SamplingParams
    from unspool.results import Generation
    from unspool.select import Choice


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The text to continue; - reads it from standard input.", show_default=False),
    ] = None,
    *,
    model: options.Model = "smollm2",
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a chat message instead of continuing it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line of figures at the end.")] = False,
    max_tokens: options.MaxTokens = None,
    preset: options.Preset = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    penalty_scope: options.PenaltyScope = None,
    order: options.Order = None,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    include_stop: options.IncludeStop = False,
    show_special: options.ShowSpecial = False,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = None,
    n: options.Samples = None,
    beam: search.Width = None,
    length_penalty: search.LengthPenalty = None,
    show_tree: search.ShowTree = False,
    best_of: search.BestOfN = None,
    mbr: search.MbrN = None,
    vote: search.VoteN = None,
    extract: search.Extract = None,
    guidance_scale: search.GuidanceScale = None,
    negative_prompt: search.NegativePrompt = None,
    logprobs: options.Logprobs = None,
    prompt_logprobs: options.PromptLogprobs = None,
    trace: options.Trace = False,
    set_: options.Set = None,
    threads: options.Threads = None,
    cache_tokens: options.CacheTokens = None,
    cache_type: options.CacheKind = "float16",
) -> None:
    """Continue PROMPT and print what comes, as it comes (several samples when they are done).

    The model sees the prompt as it is and goes on from it. To have an instruct model answer it, use --chat.
    A prompt that begins with a dash comes after --, and what is piped in is taken if there is no other.
    A last line of figures goes to standard error.
    """
    from unspool.params import SamplingParams

    settings = options.settings_of(
        set_,
        max_tokens=max_tokens,
        preset=preset,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        penalty_scope=penalty_scope,
        order=order,
        stop=stop,
        stop_token_ids=stop_token_id,
        include_stop=include_stop or None,
        skip_special_tokens=False if show_special else None,
        ignore_eos=ignore_eos or None,
        seed=seed,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        trace=trace or (show_tree and not as_json) or None,
        guidance_scale=guidance_scale,
        negative_prompt=negative_prompt,
        **search.methods(
            beam=beam,
            length_penalty=length_penalty,
            best_of=best_of,
            mbr=mbr,
            vote=vote,
            extract=extract,
        ),
    )
    if show_tree and beam is None:
        raise ParameterError("--show-tree goes with --beam")
    params = SamplingParams(**settings)
    if not as_json:
        refuse_figures(params, trace or (params.trace and not show_tree))
    text = read_prompt(prompt)

    from unspool.cache.size import check_cache_type
    from unspool.engine.branch import text_of
    from unspool.llm import LLM

    kind = check_cache_type(cache_type)
    llm = LLM(model, threads=threads, cache_tokens=cache_tokens, cache_type=kind)
    result = print_json(llm, text, chat, params) if as_json else print_text(llm, text, chat, params)
    if show_tree and not as_json and result.tree is not None:
        write("\n".join(result.tree.draw(lambda token: text_of(token, llm.tokenizer))) + "\n")
    if not quiet:
        note(footer(result, llm))


def refuse_figures(params: SamplingParams, trace: bool) -> None:
    """Raise ``ParameterError`` for figures that are asked for and that text cannot show."""
    wanted = {
        "logprobs": params.logprobs > 0,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "trace": trace,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            option = name.replace("_", "-")
            raise ParameterError(f"--{option} is reported with --json only: add --json, or leave it out")


def read_prompt(prompt: str | None) -> str:
    """The prompt, or for ``-`` all of standard input without its last line break; so too for none, if piped.

    Raises ``ParameterError`` for bytes that are no text, and where there is no prompt.
    """
    if prompt is None and sys.stdin.isatty():
        raise ParameterError(
            "there is no prompt: give a text to continue, or - to read it from standard input"
        )
    if prompt is not None and prompt != "-":
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
        try:
            for chunk in chunks:
                write(chunk.text)
                streamed = chunk.generation
        finally:  # after Ctrl-C, too, the shell's next line is its own
            write("\n")
        assert streamed is not None  # the last chunk has it
        return streamed
    result = llm.chat(text, params) if chat else llm.generate(text, params)
    for candidate in result.candidates:
        score = "" if candidate.score is None else f", score {candidate.score:.4f}"
        write(f"--- {candidate.index + 1} of {params.n}{score} ---\n{candidate.text}\n")
    return result


def footer(result: Generation, llm: LLM) -> str:
    """One line of figures about a result."""
    reason = "ended by max_tokens"
    if isinstance(result.stop_reason, str):
        reason = f"stopped at {result.stop_reason!r}"
    elif result.stop_reason is not None:
        reason = f"stopped at {llm.tokenizer.id_to_token(result.stop_reason)}"
    if result.choice is not None:
        reason = chosen(result.choice)
    parts = [
        f"{result.usage.prompt_tokens} + {result.usage.completion_tokens} tokens",
        f"first after {result.timing.time_to_first_token:.2f} s",
        f"seed {result.seed}",
        reason,
    ]
    if result.timing.decoded_tokens:
        parts.insert(1, f"{result.timing.tokens_per_second:.1f} tokens/s")
    if result.dropped_messages:
        parts.append(f"{result.dropped_messages} oldest messages dropped")
    return f"[{', '.join(parts)}]"


def chosen(choice: Choice) -> str:
    """What was chosen among samples, and how."""
    made = f"sample {choice.best + 1} of {choice.considered}, score {choice.scores[choice.best]:.4g}"
    if not choice.tally:
        return made
    votes = ", ".join(f"{each.answer}: {each.votes}" for each in choice.tally)
    return f"{made}, votes {votes}"
