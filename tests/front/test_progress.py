"""A bar for a list on a terminal: on standard error, gone at the end, and nowhere else unless asked for."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

import unspool.progress
from unspool import LLM, SamplingParams, UnspoolError

PROMPTS = ["the inner", "another", "x"]
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
"""What hides a terminal's cursor and shows it again."""
ERASED = "\x1b[2K"
"""What erases a line."""


class Terminal(io.StringIO):
    """Standard error of someone who looks at it, or not."""

    def __init__(self, attached: bool = True) -> None:
        super().__init__()
        self.attached = attached

    def isatty(self) -> bool:
        return self.attached


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(unspool.progress, "REDRAW_SECONDS", 0.0)
    return Terminal()


def is_clean(shown: str) -> bool:
    """Whether the bar was erased, and the cursor is back."""
    return shown.count(HIDE) == shown.count(SHOW) == 1 and shown.rstrip().endswith(ERASED)


def test_a_list_on_a_terminal_is_drawn_and_leaves_nothing(
    llm: LLM, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    with redirect_stderr(terminal):
        made = llm.generate(PROMPTS, seed=1, max_tokens=5, ignore_eos=True)
    shown = terminal.getvalue()
    assert "generating" in shown
    assert "tokens/s" in shown
    assert "0/3" in shown
    assert "3/3" in shown
    assert is_clean(shown)
    assert capsys.readouterr().out == ""
    with redirect_stderr(terminal):
        quiet = llm.generate(PROMPTS, seed=1, max_tokens=5, ignore_eos=True, progress=False)
    assert [g.candidates for g in made] == [g.candidates for g in quiet]
    assert terminal.getvalue() == shown


@pytest.mark.parametrize("progress", [None, True])
def test_one_request_has_no_bar(llm: LLM, terminal: Terminal, progress: bool | None) -> None:
    with redirect_stderr(terminal):
        llm.generate("x", max_tokens=3)
        llm.generate(["x"], max_tokens=3, progress=progress)
        llm.generate(list[str](), max_tokens=3, progress=progress)
        list(llm.stream("x", max_tokens=3))
        llm.chat("x", max_tokens=3)
        llm.score("the inner")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("force_color", [None, "1"])
def test_where_nobody_looks_there_is_a_bar_only_if_asked_for(
    llm: LLM,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    force_color: str | None,
) -> None:
    terminal.attached = False
    if force_color:
        monkeypatch.setenv("FORCE_COLOR", force_color)
    with redirect_stderr(terminal):
        llm.generate(PROMPTS, max_tokens=3)
        assert terminal.getvalue() == ""
        llm.generate(PROMPTS, max_tokens=3, progress=True)
    assert "3/3" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_process_without_standard_error_generates(llm: LLM) -> None:
    with redirect_stderr(None):
        assert len(llm.generate(PROMPTS, max_tokens=3)) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, UnspoolError])
def test_an_error_leaves_a_clean_terminal(
    llm: LLM, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    engine, steps = llm.engine, 0
    taken = engine.step

    def step() -> bool:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise error
        return taken()

    monkeypatch.setattr(engine, "step", step)
    with redirect_stderr(terminal), pytest.raises(error):
        llm.generate(PROMPTS, max_tokens=30, ignore_eos=True)
    shown = terminal.getvalue()
    assert "generating" in shown
    assert is_clean(shown)
    monkeypatch.setattr(engine, "step", taken)
    llm.generate("x", max_tokens=1)
    assert llm.stats().cache.held == 0


def test_a_request_that_ends_early_counts_as_done(llm: LLM, terminal: Terminal) -> None:
    params = [SamplingParams(seed=1, max_tokens=1 + 6 * i, ignore_eos=True) for i in range(3)]
    with redirect_stderr(terminal):
        llm.generate(PROMPTS, params)
    shown = terminal.getvalue()
    places = [shown.index(f"{done}/3") for done in range(4)]
    assert places == sorted(places)


CHILD = """
import signal, sys
from unspool import LLM

way, llm = sys.argv[2], LLM(sys.argv[1], threads=1)
if way == "interrupt":
    step, steps = llm.engine.step, []
    def interrupted():
        steps.append(step())
        if len(steps) == 400:
            signal.raise_signal(signal.SIGINT)
        return steps[-1]
    llm.engine.step = interrupted
count, tokens = (2000, 400) if way == "interrupt" else (40, 300)
try:
    llm.generate("x" if way == "one" else ["x"] * count, max_tokens=tokens, ignore_eos=True)
except KeyboardInterrupt:
    print("interrupted")
print("end")
"""


@pytest.mark.parametrize(
    ("way", "output", "drawn"),
    [("list", "end\n", True), ("one", "end\n", False), ("interrupt", "interrupted\nend\n", True)],
)
def test_a_real_terminal_sees_the_bar_and_has_its_line_back(
    tiny_path: Path, way: str, output: str, drawn: bool
) -> None:
    ours, theirs = pty.openpty()
    environment: dict[str, Any] = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-c", CHILD, str(tiny_path), way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as child:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        assert child.stdout is not None
        assert child.stdout.read().decode() == output
    assert child.returncode == 0
    text = shown.decode()
    assert ("generating" in text) == drawn
    assert is_clean(text) if drawn else text == ""
