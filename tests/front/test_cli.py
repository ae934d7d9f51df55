"""The command line: text on standard output, the rest on standard error, errors in one line."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from unspool.cli.chat import ChatSession, parse_value
from unspool.cli.main import main
from unspool.llm import LLM
from unspool.results import Chunk


class Ran(NamedTuple):
    status: int
    out: str
    err: str


class Command:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path, stdin: str = "") -> Ran:
        self.monkeypatch.setattr(sys, "argv", ["unspool", *map(str, arguments)])
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            main()
        captured = self.capsys.readouterr()
        return Ran(int(left.value.code or 0), captured.out, captured.err)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_generate_prints_the_text_and_a_footer(command: Command, tiny_path: Path, llm: LLM) -> None:
    expected = llm.generate("the", seed=10, max_tokens=8)
    ran = command("generate", "the", "-m", tiny_path, "--seed", "10", "-t", "8")
    assert (ran.status, ran.out) == (0, expected.text + "\n")
    assert "8 tokens" in ran.err
    assert "seed 10" in ran.err
    assert "tokens/s" in ran.err
    assert command("generate", "the", "-m", tiny_path, "-t", "1", "--quiet").err == ""


def test_generate_reads_standard_input(command: Command, tiny_path: Path, llm: LLM) -> None:
    expected = llm.generate("the\nin", seed=10, max_tokens=8)
    ran = command("generate", "-", "-m", tiny_path, "--seed", "10", "-t", "8", stdin="the\nin\n")
    assert ran.out == expected.text + "\n"


def test_every_setting_reaches_the_request(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command(
        *(
            "generate",
            "the",
            "-m",
            tiny_path,
            "--json",
            "--seed",
            "10",
            "--temperature",
            "0.9",
            "--top-k",
            "40",
        ),
        *("--top-p", "0.95", "--min-p", "0.01", "--repetition-penalty", "1.1", "--penalty-scope", "8"),
        *("--stop", "e", "--stop", "t", "--stop-token-id", "7", "--include-stop", "--ignore-eos"),
        *("--logprobs", "2", "-n", "2", "-t", "8", "--show-special"),
    )
    expected = llm.generate(
        "the",
        seed=10,
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        penalty_scope=8,
        stop=["e", "t"],
        stop_token_ids=[7],
        include_stop=True,
        ignore_eos=True,
        logprobs=2,
        n=2,
        max_tokens=8,
        skip_special_tokens=False,
    )
    printed = json.loads(ran.out)
    assert printed["candidates"] == json.loads(json.dumps(expected.to_dict()["candidates"]))


def test_generate_as_chat_and_with_several_samples(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command("generate", "hi", "-m", tiny_path, "--chat", "--seed", "10", "-t", "8")
    assert ran.out == llm.chat("hi", seed=10, max_tokens=8).text + "\n"
    ran = command("generate", "hi", "-m", tiny_path, "-n", "2", "--seed", "10", "-t", "8")
    for candidate in llm.generate("hi", n=2, seed=10, max_tokens=8).candidates:
        assert f"--- {candidate.index + 1} of 2 ---\n{candidate.text}\n" in ran.out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--temperature", "-1"), 2, "temperature must be"),
        (("--penalty-scope", "some"), 2, "penalty_scope must be"),
        (("--max-tokens", "9999"), 1, "max_tokens=9999"),
        (("--cache-tokens", "0"), 2, "cache_tokens"),
        (("--no-such-option",), 2, "no-such-option"),
    ],
)
def test_errors_are_one_clear_line(
    command: Command, tiny_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    ran = command("generate", "the", "-m", tiny_path, *arguments)
    assert (ran.status, ran.out) == (status, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def run_apart(
    *arguments: str | Path, shell: str = "", stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, its standard files changed as ``shell`` says."""
    line = f"{shlex.join([sys.executable, '-c', RUN_MAIN, *map(str, arguments)])} {shell}"
    return subprocess.run(["sh", "-c", line], input=stdin, capture_output=True, timeout=60, check=False)


RUN_MAIN = "from unspool.cli.main import main; main()"


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_bytes_that_are_no_text_are_refused(
    monkeypatch: pytest.MonkeyPatch, tiny_path: Path, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    ran = run_apart("generate", "-", "-m", tiny_path, stdin=b"ab\xff")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr.startswith(b"error: standard input is not text: it holds the byte 0xFF at character 2")
    ran = run_apart("chat", "-m", tiny_path, "-t", "1", stdin=b"\xfe\nhi\n")
    assert ran.returncode == 0
    assert ran.stderr.startswith(b"error: the line is not text")
    assert ran.stdout.count(b"\n") == 1


@pytest.mark.parametrize(("shell", "status"), [("<&-", 2), (">&-", 0), ("2>&-", 0), (">/dev/full", 1)])
def test_standard_files_may_be_missing(tiny_path: Path, shell: str, status: int) -> None:
    prompt = "-" if shell == "<&-" else "the"
    ran = run_apart("generate", prompt, "-m", tiny_path, "-t", "3", "--seed", "1", shell=shell)
    assert ran.returncode == status
    assert b"Traceback" not in ran.stderr
    assert ran.stderr.startswith(b"error: ") is (status > 0)
    assert b"tokens/s" not in ran.stdout


def test_a_reader_that_leaves_ends_it_quietly(tiny_path: Path) -> None:
    ran = run_apart("generate", "the", "-m", tiny_path, "-t", "500", "--ignore-eos", shell="| head -c 1")
    assert (len(ran.stdout), ran.stderr) == (1, b"")


def test_an_unknown_model_is_an_error(command: Command) -> None:
    ran = command("generate", "the", "-m", "no-such-model")
    assert ran.status == 1
    assert ran.err.startswith("error: ")


def test_chat_keeps_a_conversation(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command(
        "chat", "-m", tiny_path, "--seed", "10", "-t", "6", stdin="hi\n\nthere\n/reset\nhi\n/quit\nx\n"
    )
    messages = [{"role": "user", "content": "hi"}]
    first = llm.chat(messages, seed=10, max_tokens=6).text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "there"}]
    second = llm.chat(messages, seed=10, max_tokens=6).text
    assert (ran.status, ran.out) == (0, f"{first}\n{second}\n{first}\n")


def test_chat_commands(command: Command, tiny_path: Path) -> None:
    lines = [
        *(
            "/help",
            "/set",
            "/set temperature 0.5",
            "/set top_k nine",
            "/set nothing 1",
            "/set top_p",
            "/set n 2",
        ),
        *("/set max_tokens 3", "/set", "/set temperature none", "/set", "/system be kind", "/system", "/no"),
    ]
    ran = command("chat", "-m", tiny_path, stdin="\n".join(lines))
    assert (ran.status, ran.out) == (0, "")
    for said in (
        "/reset  ",
        "(all at their defaults)",
        "error: top_k must be",
        "error: unknown parameter 'nothing'",
        "error: /set top_p needs a value",
        "n cannot be set",
        "temperature = 0.5\nmax_tokens = 3\nmax_tokens = 3\n",
        "(system message set)",
        "(no system message)",
        "error: there is no command /no",
    ):
        assert said in ran.err


def test_an_interrupted_reply_stays_in_the_conversation(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupting:
        def __init__(self) -> None:
            self.closed = False

        def stream_chat(self, messages: object, **_: object) -> Iterator[Chunk]:
            try:
                yield Chunk("so ", ())
                yield Chunk("far", ())
                raise KeyboardInterrupt
            finally:
                self.closed = True

    fake = Interrupting()
    session = ChatSession(fake, {}, "be kind", verbose=False)  # type: ignore[arg-type]
    session.take("hi")
    assert fake.closed
    assert capsys.readouterr().out == "so far\n"
    assert [m["content"] for m in session.messages] == ["be kind", "hi", "so far"]


def test_a_failed_reply_leaves_the_conversation_as_it_was(command: Command, tiny_path: Path) -> None:
    ran = command("chat", "-m", tiny_path, "-t", "500", "--seed", "1", stdin="hi\n/set max_tokens 4\nhi\n")
    assert "error: " in ran.err
    assert ran.status == 0
    assert ran.out.endswith("\n")


@pytest.mark.parametrize(
    ("text", "value"), [("none", None), ("True", True), ("0.5", 0.5), ("7", 7), ("all", "all")]
)
def test_values_are_read_as_typed(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("arguments", [("--help",), ("generate", "--help"), ("--version",)])
def test_help_and_import_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys, unspool\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'huggingface_hub', 'rich'}\n"
        "assert not heavy & set(sys.modules)\n"
        f"sys.argv = ['unspool', *{arguments!r}]\n"
        "from unspool.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "unspool" in ran.stdout
