"""``unspool chat``: talk with a model."""

from __future__ import annotations

import sys
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
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    penalty_scope: options.PenaltyScope = None,
    stop: options.Stop = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    cache_tokens: options.CacheTokens = None,
) -> None:
    """Talk with a model.

    Each line of standard input is a message; /help lists what else can be typed. The conversation's
    oldest turns are dropped where they no longer fit in the context.
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
        seed=seed,
    )
    SamplingParams(**settings)

    from unspool.llm import LLM

    session = ChatSession(LLM(model, threads=threads, cache_tokens=cache_tokens), settings, system, verbose)
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # line editing and history for input()
        note(f"{model}. /help for help, Ctrl-D to leave.")
    session.run()


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

    def run(self) -> None:
        """Read lines and answer them until the input ends."""
        prompt = "> " if sys.stdin.isatty() else ""
        while True:
            try:
                line = input(prompt)
            except EOFError:
                if prompt:
                    write("\n")
                return
            except KeyboardInterrupt:
                note("\n(Ctrl-D leaves)")
                continue
            if line.strip() in ("/quit", "/exit"):
                return
            try:
                self.take(as_text(line, "the line"))
            except UnspoolError as error:
                note(f"error: {error}")

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
        if name == "n":
            raise ParameterError("a chat draws one reply: n cannot be set")
        from unspool.params import SamplingParams

        changed = {**self.settings, name: parse_value(value)}
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


def parse_value(text: str) -> Any:
    """A setting's value as typed: none, true, false, a number, or else text."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
