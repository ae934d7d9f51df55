"""``unspool chat``: talk with a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unspool.cli import options
from unspool.cli.generate import footer
from unspool.cli.terminal import as_text, note, write
from unspool.errors import ParameterError, UnspoolError

if TYPE_CHECKING:
    from unspool.llm import LLM
    from unspool.params import Settings
    from unspool.results import Chunk

HELP = """\
/help                  this list
/reset                 forget the conversation
/system TEXT           set the system message, and forget the conversation
/set NAME VALUE        change a setting, such as /set temperature 0.7; VALUE none is the default
/set                   show the settings that were changed
/quit                  leave; so does Ctrl-D
Ctrl-C interrupts a reply; what was said of it stays in the conversation."""


def chat(
    *,
    model: options.Model = "smollm2",
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Figures after each reply.")] = False,
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
    seed: options.Seed = None,
    set_: options.Set = None,
    threads: options.Threads = None,
    cache_tokens: options.CacheTokens = None,
    cache_type: options.CacheKind = "float16",
) -> None:
    """Talk with a model.

    Each line of standard input is a message; /help lists what else can be typed. The conversation's
    oldest turns are dropped where they no longer fit in the context.
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
        seed=seed,
    )
    refuse_samples(settings)
    SamplingParams(**settings)

    from unspool.cache.size import check_cache_type
    from unspool.llm import LLM

    kind = check_cache_type(cache_type)
    llm = LLM(model, threads=threads, cache_tokens=cache_tokens, cache_type=kind)
    session = ChatSession(llm, settings, system, verbose)
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # line editing and history for input()
        note(f"{model}. /help for help, Ctrl-D to leave.")
    if not session.run() and not sys.stdin.isatty():
        raise typer.Exit(1)


class ChatSession:
    """A conversation: messages so far, and the settings of the next reply."""

    def __init__(self, llm: LLM, settings: Settings, system: str | None, verbose: bool) -> None:
        self.llm = llm
        self.settings = settings
        self.verbose = verbose
        self.messages: list[dict[str, str]] = []
        self.begin(system)

    def begin(self, system: str | None) -> None:
        """Start anew, with a system message or without."""
        self.system = system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def run(self) -> bool:
        """Read lines and answer them until the input ends; whether every one could be."""
        prompt, well = "> " if sys.stdin.isatty() else "", True
        while True:
            try:
                line = input(prompt)
            except EOFError:
                if prompt:
                    write("\n")
                return well
            except KeyboardInterrupt:
                note("\n(Ctrl-D leaves)")
                continue
            if line.strip() in ("/quit", "/exit"):
                return well
            try:
                self.take(as_text(line, "the line"))
            except UnspoolError as error:
                note(f"error: {error}")
                well = False

    def take(self, line: str) -> None:
        """Do what a line says: a command, or a message to reply to."""
        if not line.strip():
            return
        if not line.startswith("/"):
            self.reply(line)
            return
        command, _, rest = line.strip().partition(" ")
        if command == "/help":
            note(HELP)
        elif command == "/reset":
            self.begin(self.system)
            note("(forgotten)")
        elif command == "/system":
            self.begin(rest.strip() or None)
            note("(system message set)" if self.system else "(no system message)")
        elif command == "/set":
            self.change(rest)
        else:
            raise ParameterError(f"there is no command {command}; /help lists them")

    def change(self, rest: str) -> None:
        """``NAME VALUE``: change a setting. Raises ``ParameterError``, and changes nothing."""
        name, _, value = rest.strip().partition(" ")
        if not name:
            note("\n".join(f"{n} = {v!r}" for n, v in self.settings.items()) or "(all at their defaults)")
            return
        if not value:
            raise ParameterError(f"/set {name} needs a value, such as /set temperature 0.7")
        from unspool.params import SamplingParams

        changed = {**self.settings, name: options.read_value(value.strip())}
        refuse_samples(changed)
        SamplingParams(**changed)
        self.settings = cast("Settings", {n: v for n, v in changed.items() if v is not None})

    def reply(self, text: str) -> None:
        """Send a message, print the reply as it comes, and keep both; a reply that failed leaves neither."""
        messages = [*self.messages, {"role": "user", "content": text}]
        said: list[str] = []
        last: Chunk | None = None
        try:
            with closing(self.llm.stream_chat(messages, **self.settings)) as chunks:
                for last in chunks:
                    said.append(last.text)
                    write(last.text)
        except KeyboardInterrupt:
            write("\n")
            note("(interrupted)")
            if not said:
                return
        else:
            write("\n")
        self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]
        if last is not None and last.generation is not None:
            dropped = last.generation.dropped_messages
            if dropped:
                note(f"({dropped} oldest messages no longer fit and were left out)")
            if self.verbose:
                note(footer(last.generation, self.llm))


def refuse_samples(settings: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` where several samples are asked for, or figures that a chat does not show."""
    if "n" in settings:
        raise ParameterError("a chat draws one reply: n cannot be set")
    for name in ("logprobs", "prompt_logprobs", "trace"):
        if settings.get(name):
            raise ParameterError(f"a chat shows text alone: {name} is for generate --json")
