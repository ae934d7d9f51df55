"""``unspool explain``: what each rule does to the law of the next token."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unspool.cli import options
from unspool.cli.generate import read_prompt
from unspool.cli.terminal import note, write
from unspool.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from unspool.llm import LLM
    from unspool.params import SamplingParams
    from unspool.results import Alternative, Distribution, RuleTrace

MOST_LISTED = 32
"""The most tokens that can be listed."""
RULE_BAR, TOKEN_BAR = 6, 16
"""How many characters a whole bar takes."""
TRUNCATIONS = (
    "top_n_sigma",
    "min_p",
    "top_k",
    "top_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_a",
    "tail_free",
    "top_h",
    "p_less",
    "mirostat",
)
"""The rules that keep what is at least so probable."""
EIGHTHS = " ▏▎▍▌▋▊▉"


def explain(
    prompt: Annotated[str, typer.Argument(help="The text that the token follows; - reads standard input.")],
    *,
    model: options.Model = "smollm2",
    chat: Annotated[
        bool, typer.Option("--chat", help="The first token of the reply to the prompt as a chat message.")
    ] = False,
    top: Annotated[int, typer.Option(help=f"How many tokens to list, 1 to {MOST_LISTED}.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole law as one JSON object.")] = False,
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
    seed: Annotated[
        int | None, typer.Option(help="Fixes the coin of a rule that tosses one (XTC); drawn if not given.")
    ] = None,
    set_: options.Set = None,
    threads: options.Threads = None,
    cache_tokens: options.CacheTokens = None,
    cache_type: options.CacheKind = "float16",
) -> None:
    """Show what each rule does to the law of the token that comes after PROMPT.

    Rules in their order: how many candidates each kept, and how much of the probability that reached it;
    the least probability that it kept (≥), or how much it moved from some tokens to others; the entropy
    before and after, in nats. Then the tokens that were most probable before all rules or after them.
    """
    from unspool.params import SamplingParams

    settings = options.settings_of(
        set_,
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
        seed=seed,
    )
    if not 1 <= top <= MOST_LISTED:
        raise ParameterError(f"--top must be a whole number from 1 to {MOST_LISTED}, not {top}")
    if "logprobs" in settings:
        raise ParameterError("--top says how many tokens are listed: leave logprobs out")
    params = SamplingParams(**settings, logprobs=top)
    text = read_prompt(prompt)

    from unspool.cache.size import check_cache_type
    from unspool.llm import LLM

    kind = check_cache_type(cache_type)
    llm = LLM(model, threads=threads, cache_tokens=cache_tokens, cache_type=kind)
    law = next_token(llm, text, chat, params)
    listed = most_probable(law, top)
    if as_json:
        facts = {**law.to_dict(), "tokens": [token_facts(token) for token in listed]}
        write(json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n")
        return
    show(law, [(spelled(llm, token.id), token) for token in listed])


def next_token(llm: LLM, text: str, chat: bool, params: SamplingParams) -> Distribution:
    """The law of the token after a text, or of a reply's first token."""
    if not chat:
        return llm.next_token(text, params)
    request, dropped = llm.prepare_chat(text, params, continue_final_message=False)
    if dropped:
        note(f"({dropped} oldest messages no longer fit and were left out)")
    return llm.next_token(request.prompt, params)


def most_probable(law: Distribution, count: int) -> list[Alternative]:
    """The tokens that are the most probable before all rules or after them, by whichever is more."""
    either = {token.id: token for token in (*law.top_processed_logprobs, *law.top_logprobs)}
    ranked = sorted(
        either.values(), key=lambda token: (-max(token.logprob, token.processed_logprob), token.id)
    )
    return ranked[:count]


def token_facts(token: Alternative) -> dict[str, Any]:
    """A listed token as JSON has it."""
    return {
        "id": token.id,
        "text": token.text,
        "probability_before": math.exp(token.logprob),
        "probability": math.exp(token.processed_logprob),
    }


def spelled(llm: LLM, token: int) -> str:
    """A token between quotation marks, its control characters escaped; its bytes where they are no text."""
    written = llm.tokenizer.token_bytes(token)
    try:
        return repr(written.decode())
    except UnicodeDecodeError:
        return repr(written)


def show(law: Distribution, listed: Sequence[tuple[str, Alternative]]) -> None:
    """Print a law as tables."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    utf = console.encoding.lower().startswith("utf")
    if law.trace:
        console.print(rules_table(law.trace, utf))
    else:
        console.print("no rule is on")
    console.print()
    console.print(tokens_table(listed, utf))
    console.print()
    entropies = f"entropy {law.entropy_before:.2f} {arrow_of(utf)} {law.entropy:.2f} nats"
    console.print(f"{len(law):,} candidate{'s' * (len(law) > 1)}, {entropies}", soft_wrap=True)


def new_table(*columns: tuple[str, bool]) -> Table:
    """A table without lines; columns by name, and whether they go to the right."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name, right in columns:
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    return table


def rules_table(trace: Sequence[RuleTrace], utf: bool) -> Table:
    """One rule a line, in their order."""
    from rich.text import Text

    table = new_table(
        ("rule", False), ("candidates", True), ("mass kept", False), ("cut or move", True), ("entropy", True)
    )
    arrow = arrow_of(utf)
    for rule in trace:
        table.add_row(
            Text(rule.rule, "bold"),
            f"{rule.candidates_before:,} {arrow} {rule.candidates:,}",
            Text(f"{bar(rule.mass, RULE_BAR, utf)} {percent(rule.mass)}", "cyan"),
            cut_or_move(rule, utf),
            f"{rule.entropy_before:.2f} {arrow} {rule.entropy:.2f}",
        )
    return table


def cut_or_move(rule: RuleTrace, utf: bool) -> str:
    """The least probability that a truncation kept; of another rule how much it moved."""
    if rule.rule in TRUNCATIONS and rule.candidates < rule.candidates_before:
        return f"{'≥' if utf else '>='} {rule.threshold:.3g}"
    return f"moved {rule.shift:.1%}"


def tokens_table(listed: Sequence[tuple[str, Alternative]], utf: bool) -> Table:
    """One token a line, with its probability before all rules and after them."""
    from rich.text import Text

    table = new_table(("token", False), ("before the rules", False), ("after them", False))
    table.columns[0].max_width = 24
    table.columns[0].overflow = "ellipsis"
    for text, token in listed:
        before, after = math.exp(token.logprob), math.exp(token.processed_logprob)
        table.add_row(
            Text(text if utf else text.encode("ascii", "backslashreplace").decode(), "bold"),
            Text(f"{bar(before, TOKEN_BAR, utf)} {percent(before)}", "bright_black"),
            Text(f"{bar(after, TOKEN_BAR, utf)} {percent(after)}", "cyan")
            if after > 0
            else Text(f"{'':{TOKEN_BAR}}    out", "bright_black"),
        )
    return table


def arrow_of(utf: bool) -> str:
    """An arrow to the right."""
    return "→" if utf else "->"


def percent(p: float) -> str:
    """Six characters."""
    return f"{p:6.1%}" if p >= 0.0005 or p == 0 else " <0.1%"


def bar(share: float, width: int, utf: bool) -> str:
    """``width`` characters, of which a share is filled, to an eighth of one where there are such."""
    if not utf:
        return "#" * round(share * width) + " " * (width - round(share * width))
    eighths = round(share * width * 8)
    full = "█" * (eighths // 8)
    return f"{full}{EIGHTHS[eighths % 8] if eighths % 8 else ''}".ljust(width)
