"""The command line: text on standard output, the rest on standard error, errors in one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.front.commands import Command
from unspool import ParameterError
from unspool.cache.size import CacheType
from unspool.cli.chat import ChatSession
from unspool.cli.options import read_value, settings_of
from unspool.llm import LLM
from unspool.results import Chunk


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
        *("generate", "the", "-m", tiny_path, "--json", "--trace", "--seed", "10", "-t", "8", "-n", "2"),
        *("--preset", "code", "--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"),
        *("--repetition-penalty", "1.1", "--frequency-penalty", "0.1", "--presence-penalty", "-0.2"),
        *("--penalty-scope", "8", "--stop", "e", "--stop", "t", "--stop-token-id", "7", "--include-stop"),
        *("--ignore-eos", "--logprobs", "2", "--prompt-logprobs", "1", "--show-special"),
        *("--set", "top_a=0.01", "--set", 'bad_words=["in", [5, 6]]', "--set", 'logit_bias={"9": 1}'),
        *("--set", "p_less=false", "--set", "cache_salt=mine"),
    )
    expected = llm.generate(
        "the",
        preset="code",
        seed=10,
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=-0.2,
        penalty_scope=8,
        stop=["e", "t"],
        stop_token_ids=[7],
        include_stop=True,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
        trace=True,
        n=2,
        max_tokens=8,
        skip_special_tokens=False,
        top_a=0.01,
        bad_words=["in", [5, 6]],
        logit_bias={9: 1},
    )
    printed = json.loads(ran.out)
    for name in ("candidates", "prompt_tokens", "seed"):
        assert printed[name] == json.loads(json.dumps(expected.to_dict()[name]))


@pytest.mark.parametrize(
    ("given", "order"),
    [("llama.cpp", "llama.cpp"), ("top_k, temperature", ["top_k", "temperature"]), ("top_k", ["top_k"])],
)
def test_an_order_is_an_engines_or_rules_joined_by_commas(
    command: Command, tiny_path: Path, llm: LLM, given: str, order: Any
) -> None:
    temperature = () if given == "top_k" else ("--temperature", "0.6")
    settings: dict[str, Any] = {} if given == "top_k" else {"temperature": 0.6}
    ran = command(
        *("generate", "the", "-m", tiny_path, "--json", "--trace", "--seed", "1", "-t", "5"),
        *("--top-k", "9", "--order", given, *temperature),
    )
    expected = llm.generate("the", order=order, top_k=9, seed=1, max_tokens=5, trace=True, **settings)
    assert json.loads(ran.out)["tokens"] == json.loads(json.dumps(expected.to_dict()["tokens"]))


def test_generate_with_a_cache_of_another_type(command: Command, tiny_path: Path) -> None:
    ran = command(
        "generate",
        "the",
        "-m",
        tiny_path,
        "--cache-type",
        "int8",
        "--json",
        "-t",
        "9",
        "--logprobs",
        "1",
        "--seed",
        "1",
    )
    settings: dict[str, Any] = {"max_tokens": 9, "logprobs": 1, "seed": 1}
    kinds: tuple[CacheType, ...] = ("int8", "float16")
    made = {kind: LLM(tiny_path, cache_type=kind).generate("the", **settings) for kind in kinds}
    tokens = {kind: json.loads(json.dumps(each.to_dict()["tokens"])) for kind, each in made.items()}
    assert json.loads(ran.out)["tokens"] == tokens["int8"] != tokens["float16"]


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
        (("--preset", "poetry"), 2, "preset must be one of factual"),
        (("--order", "hf"), 2, "order must be a tuple of rule names or one of transformers"),
        (("--order", "top_k,topp"), 2, "order names 'topp', which is no rule"),
        (("--order", "top_k,"), 2, "order names '', which is no rule"),
        (("--order", "openvino", "--set", "top_a=0.1"), 2, "top_a is set, but the order of 'openvino'"),
        (("--set", "top_a"), 2, "--set takes NAME=VALUE"),
        (("--set", "topk=1"), 2, "unknown parameter 'topk'; did you mean top_k?"),
        (("--set", "top_a=high"), 2, "top_a must be a number, not 'high'"),
        (("--set", "bad_words=um"), 2, "bad_words must be a list"),
        (("--set", "logits_processors=[1]"), 2, "logits_processors must be"),
        (("--set", "xtc_threshold=0.1"), 2, "xtc_threshold is set, but xtc_probability is not"),
        (("--temperature", "1", "--set", "temperature=1"), 2, "temperature is given twice"),
        (("--set", "top_a=1", "--set", "top_a=1"), 2, "top_a is given twice"),
        (("--logprobs", "1"), 2, "--logprobs is reported with --json only"),
        (("--prompt-logprobs", "0"), 2, "--prompt-logprobs is reported with --json only"),
        (("--trace",), 2, "--trace is reported with --json only"),
        (("--set", "trace=true"), 2, "--trace is reported with --json only"),
        (("--max-tokens", "9999"), 1, "max_tokens=9999"),
        (("--cache-tokens", "0"), 2, "cache_tokens"),
        (("--cache-type", "fp8"), 2, "cache_type must be one of float16, bfloat16, float32, int8, not 'fp8'"),
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
    assert ran.returncode == 1  # a line was refused, and the next answered
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
            '/set bad_words ["um", [5]]',
            "/set bad_words none",
        ),
        *("/set max_tokens 3", "/set", "/set temperature none", "/set", "/system be kind", "/system", "/no"),
    ]
    ran = command("chat", "-m", tiny_path, stdin="\n".join(lines))
    assert (ran.status, ran.out) == (1, "")
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
    assert ran.status == 1
    assert ran.out.endswith("\n")


def test_a_prompt_may_be_piped_in(command: Command, tiny_path: Path) -> None:
    asked = ("-m", tiny_path, "-t", "3", "--seed", "1", "-q")
    piped, given = command("generate", *asked, stdin="the inner\n"), command("generate", "the inner", *asked)
    assert piped == given
    assert given.status == 0


def test_one_token_has_no_speed(command: Command, tiny_path: Path) -> None:
    ran = command("generate", "the", "-m", tiny_path, "-t", "1", "--ignore-eos")
    assert "1 tokens, first after" in ran.err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("none", None), ("null", None), ("True", True), ("false", False)],
        *[("0.5", 0.5), (".5", 0.5), ("7", 7), ("-1e3", -1000.0), ("1e400", float("inf"))],
        *[("all", "all"), ("llama.cpp", "llama.cpp"), ('"7"', "7"), ("a=b", "a=b"), ("", "")],
        *[('["um", [5, 6]]', ["um", [5, 6]]), ('{"9": -Infinity}', {"9": float("-inf")}), ("[1", "[1")],
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_are_read_as_typed(text: str, value: object) -> None:
    assert read_value(text) == value
    assert settings_of([f"top_a = {text}"], top_k=3, top_p=None) == {"top_k": 3, "top_a": value}


def test_a_setting_that_is_no_text_is_refused() -> None:
    with pytest.raises(ParameterError, match="--set is not text: it holds the byte 0xFF"):
        settings_of(["stop=\udcff"])


def test_a_warning_is_one_note_on_standard_error(command: Command, tiny_path: Path) -> None:
    hot = ("--temperature", "1.6", "--top-p", "0.99", "-t", "2")
    said = "note: temperature 1.6 with top_p 0.99 and no penalty: the text is likely to fall apart"
    ran = command("generate", "the", "-m", tiny_path, "--quiet", *hot)
    assert ran.status == 0
    assert ran.err.startswith(said)
    assert ran.err.count("\n") == 1
    ran = command("chat", "-m", tiny_path, *hot, stdin="hi\nthere\n/set temperature 1.7\nyou\n")
    assert ran.err.count("note: ") == 2
    assert "temperature 1.7" in ran.err.splitlines()[1]
    assert "Warning" not in ran.err
    apart = run_apart("generate", "the", "-m", tiny_path, "--quiet", *hot)
    assert apart.stderr.decode().startswith(said)
    assert apart.stderr.count(b"\n") == 1


def test_a_chat_takes_every_setting(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command(
        *("chat", "-m", tiny_path, "--seed", "10", "-t", "6", "--preset", "creative", "--order", "mlx"),
        *("--frequency-penalty", "0.5", "--presence-penalty", "0.1", "--set", "xtc_probability=0.5"),
        stdin="hi\n/set\n/set order none\n/set top_a 0.2\nhi\n",
    )
    settings: dict[str, Any] = {"seed": 10, "max_tokens": 6, "preset": "creative", "frequency_penalty": 0.5}
    settings |= {"presence_penalty": 0.1, "xtc_probability": 0.5}
    first = llm.chat("hi", order="mlx", **settings).text
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": first}]
    second = llm.chat([*messages, {"role": "user", "content": "hi"}], top_a=0.2, **settings).text
    assert (ran.status, ran.out) == (0, f"{first}\n{second}\n")
    assert "preset = 'creative'\n" in ran.err
    assert "order = 'mlx'\n" in ran.err
    ran = command("chat", "-m", tiny_path, "--set", "n=2")
    assert (ran.status, ran.err) == (2, "error: a chat draws one reply: n cannot be set\n")


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("generate", "--help"), ("explain", "--help"), ("presets", "--help"), ("--version",)],
)
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
