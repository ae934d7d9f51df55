"""``unspool explain`` and ``unspool presets``: what the rules do, for people and as JSON."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.front.commands import Command
from unspool import LLM, Distribution, RuleTrace
from unspool.cli.explain import bar, cut_or_move, most_probable, percent, rules_table, spelled, tokens_table
from unspool.results import Alternative
from unspool.sampling.presets import DEFAULT_ORDER, PRESETS
from unspool.task_presets import TASK_PRESETS

OPTIONS = ("--temperature", "0.7", "--min-p", "0.05", "--top-p", "0.9", "--repetition-penalty", "1.2")
SETTINGS: dict[str, Any] = {"temperature": 0.7, "min_p": 0.05, "top_p": 0.9, "repetition_penalty": 1.2}


def printed(text: str) -> list[str]:
    """The lines, which may hold no control character and are no wider than a terminal."""
    lines = text.removesuffix("\n").split("\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert all(cell_len(line.rstrip()) <= 80 for line in lines)
    return lines


def test_rules_and_tokens_are_printed_in_their_order(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command("explain", "the", "-m", tiny_path, "--penalty-scope", "all", *OPTIONS, "--top", "4")
    law = llm.next_token("the", penalty_scope="all", **SETTINGS)
    assert (ran.status, ran.err) == (0, "")
    lines = printed(ran.out)
    assert [line.split()[0] for line in lines[1:5]] == ["repetition_penalty", "temperature", "min_p", "top_p"]
    for line, step in zip(lines[1:5], law.trace, strict=True):
        assert f"{step.candidates_before:,} → {step.candidates:,}" in line
        assert f"{step.mass:.1%}" in line
        assert f"{step.entropy_before:.2f} → {step.entropy:.2f}" in line
    assert f"moved {law.trace[1].shift:.1%}" in lines[2]
    assert f"≥ {law.trace[2].threshold:.3g}" in lines[3]
    assert [line.split()[0] for line in (lines[0], lines[6])] == ["rule", "token"]
    for line, token in zip(lines[7:11], most_probable(law, 4), strict=True):
        assert line.startswith(spelled(llm, token.id))
        assert percent(math.exp(token.logprob)) in line
        after = percent(math.exp(token.processed_logprob)) if law.probability(token.id) else "out"
        assert line.rstrip().endswith(after)
    assert lines[12] == (f"{len(law)} candidates, entropy {law.entropy_before:.2f} → {law.entropy:.2f} nats")
    assert len(lines) == 13


def test_where_no_rule_is_on_it_says_so(command: Command, tiny_path: Path) -> None:
    lines = printed(command("explain", "the", "-m", tiny_path).out)
    assert lines[0] == "no rule is on"
    assert len(lines) == 15  # ten tokens


def test_json_is_the_whole_law_with_the_texts_of_listed_tokens(
    command: Command, tiny_path: Path, llm: LLM
) -> None:
    ran = command("explain", "the", "-m", tiny_path, "--json", "--top", "12", *OPTIONS)
    facts = json.loads(ran.out)
    law = llm.next_token("the", logprobs=12, **SETTINGS)
    listed = facts.pop("tokens")
    assert facts == json.loads(json.dumps(law.to_dict()))
    assert [token["id"] for token in listed] == [token.id for token in most_probable(law, 12)]
    for token in listed:
        assert token["probability"] == pytest.approx(law.probability(token["id"]), rel=1e-5)
        assert token["text"] == llm.tokenizer.token_bytes(token["id"]).decode("utf-8", "replace")


def test_every_setting_reaches_the_law(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command(
        *("explain", "-", "-m", tiny_path, "--json", "--top", "32", "--preset", "creative", "--top-k", "30"),
        *("--top-p", "0.9", "--min-p", "0.001", "--repetition-penalty", "1.1", "--frequency-penalty", "0.1"),
        *(
            "--presence-penalty",
            "0.2",
            "--penalty-scope",
            "5",
            "--order",
            ",".join(reversed(DEFAULT_ORDER[:-2])),
        ),
        *("--seed", "7", "--set", "xtc_probability=0.5", "--set", "xtc_threshold=0.01"),
        stdin="the\nin\n",
    )
    law = llm.next_token(
        "the\nin",
        preset="creative",
        top_k=30,
        top_p=0.9,
        min_p=0.001,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        penalty_scope=5,
        order=[*reversed(DEFAULT_ORDER[:-2])],
        seed=7,
        xtc_probability=0.5,
        xtc_threshold=0.01,
        logprobs=32,
    )
    facts = json.loads(ran.out)
    del facts["tokens"]
    assert facts == json.loads(json.dumps(law.to_dict()))
    assert facts["trace"][0]["rule"] == "xtc"


def test_a_chats_first_token_may_be_explained(command: Command, tiny_path: Path, llm: LLM) -> None:
    ran = command("explain", "hi", "-m", tiny_path, "--chat", "--json", "--temperature", "0.7")
    ids = llm.tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    assert json.loads(ran.out)["ids"] == llm.next_token(ids, temperature=0.7).ids.tolist()
    drawn = llm.chat("hi", temperature=0.7, seed=1, max_tokens=1, ignore_eos=True).tokens[0]
    assert math.exp(drawn.processed_logprob) == pytest.approx(
        llm.next_token(ids, temperature=0.7).probability(drawn.id), rel=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--top", "0"), 2, "--top must be a whole number from 1 to 32, not 0"),
        (("--top", "33"), 2, "--top must be a whole number from 1 to 32, not 33"),
        (("--temperature", "-1"), 2, "temperature must be"),
        (("--set", "max_token=1"), 2, "did you mean max_tokens?"),
        (("--set", "logprobs=1"), 2, "--top says how many tokens are listed"),
        (
            ("--set", "allowed_token_ids=[5]", "--set", "bad_words=[[5]]"),
            1,
            "no token left (rules: bad_words, allowed",
        ),
    ],
)
def test_errors_are_one_clear_line(
    command: Command, tiny_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    ran = command("explain", "the", "-m", tiny_path, *arguments)
    assert (ran.status, ran.out) == (status, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_texts_may_hold_anything(command: Command, tiny_path: Path, llm: LLM) -> None:
    """Control characters, markup and halves of characters, made the most probable tokens."""
    row = llm.logits("the")[-1]
    odd = {token: 100 - float(row[token]) for token in (3, 10, 13, 30, 36, 66, 94, 126, 150, 200, 240)}
    ran = command("explain", "the", "-m", tiny_path, "--top", "14", "--set", f"logit_bias={json.dumps(odd)}")
    lines = printed(ran.out)
    names = [spelled(llm, token) for token in odd]
    assert all(any(line.startswith(f"{name} ") for line in lines[4:18]) for name in names)
    assert any(name.startswith("b'\\x") for name in names)
    assert "'\\x07'" in names


@pytest.mark.parametrize(
    "text", ["[red]x[/red]", "[/]", ":smile:", "\x1b[31m", "\u202e", "東京" * 20, "🙂", "\\"]
)
def test_no_text_is_taken_for_markup_or_breaks_the_table(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    from rich.console import Console

    table = tokens_table([(repr(text), Alternative(1, text, math.log(0.5), -math.inf))], utf=True)
    Console(highlight=False, markup=False, emoji=False, width=80).print(table)
    [_, line] = printed(capsys.readouterr().out)
    shown = repr(text)
    assert line.startswith(shown if cell_len(shown) <= 24 else shown[:10])
    assert line.rstrip().endswith("out")
    assert " 50.0%" in line


def test_large_vocabularies_and_long_names_fit(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    def step(rule: str) -> RuleTrace:
        return RuleTrace(rule, 262_144, 262_144, 1.0, 1.0, 1.23e-12, 1.0, 12.47, 12.47)

    def cut(rule: str) -> RuleTrace:
        return RuleTrace(rule, 262_144, 262_143, 0.99999, 1.0, 1.23e-12, 1e-5, 12.47, 12.47)

    trace = [*map(step, DEFAULT_ORDER), *map(cut, DEFAULT_ORDER)]
    for utf in (True, False):
        Console(highlight=False, markup=False, emoji=False, width=80).print(rules_table(trace, utf))
        lines = printed(capsys.readouterr().out)
        assert [line.split()[0] for line in lines[1:]] == [*DEFAULT_ORDER, *DEFAULT_ORDER]
        assert all(line.rstrip().endswith("12.47") for line in lines[1:])


def test_a_terminal_that_knows_no_blocks_gets_plain_characters(
    command: Command, tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.front.test_cli import run_apart

    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ran = run_apart("explain", "\u00e9", "-m", tiny_path, *OPTIONS)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"#" in ran.stdout
    assert b" -> " in ran.stdout
    assert b">= 0." in ran.stdout
    assert b"?" not in ran.stdout.replace(b"'?'", b"")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    assert "█" in run_apart("explain", "the", "-m", tiny_path, *OPTIONS).stdout.decode()


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0, "    "),
        (1, "████"),
        (0.5, "██  "),
        (0.53125, "██▏ "),
        (0.01, "    "),
        (0.99, "████"),
        (0.97, "███▉"),
    ],
)
def test_a_bar_is_as_long_as_its_share(share: float, drawn: str) -> None:
    assert bar(share, 4, utf=True) == drawn
    assert bar(share, 4, utf=False) == "#" * round(4 * share) + " " * (4 - round(4 * share))


@pytest.mark.parametrize(
    ("p", "said"), [(0, "  0.0%"), (1e-9, " <0.1%"), (0.0005, "  0.1%"), (0.999, " 99.9%"), (1, "100.0%")]
)
def test_a_probability_takes_six_characters(p: float, said: str) -> None:
    assert percent(p) == said


def test_a_truncation_says_where_it_cut_and_another_rule_how_much_it_moved() -> None:
    def step(rule: str, left: int) -> RuleTrace:
        return RuleTrace(rule, 100, left, 0.9, 0.9, 0.0123, 0.1, 2.0, 1.9)

    assert cut_or_move(step("top_p", 50), utf=True) == "≥ 0.0123"
    assert cut_or_move(step("top_p", 100), utf=True) == "moved 10.0%"
    assert cut_or_move(step("bad_words", 50), utf=True) == "moved 10.0%"


def test_listed_tokens_are_the_most_probable_before_or_after(llm: LLM) -> None:
    law: Distribution = llm.next_token(
        "the", xtc_probability=1.0, xtc_threshold=0.02, logprobs=32, logit_bias={5: -2.0}
    )
    listed = most_probable(law, 6)
    every = llm.next_token("the", logit_bias={5: -2.0})
    best = {token.id: max(token.logprob, token.processed_logprob) for token in listed}
    assert (
        max(best.values()) == law.top_processed_logprobs[0].processed_logprob
        or max(best.values()) == law.top_logprobs[0].logprob
    )
    least = math.exp(min(best.values()))
    unlisted = [token for token in every.ids.tolist() if token not in best]
    assert all(law.probability(token) <= least * (1 + 1e-6) for token in unlisted)
    assert any(token.processed_logprob == -math.inf for token in listed)


def test_presets_are_listed(command: Command) -> None:
    ran = command("presets")
    lines = printed(ran.out)
    assert ran.status == 0
    starts = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert starts == ["Tasks,", *TASK_PRESETS, "Orders", "(default)", *PRESETS]
    assert re.search(r"^code +temperature 0.2, top_p 0.95$", ran.out, re.MULTILINE)
    text = " ".join(ran.out.split())
    for task in TASK_PRESETS.values():
        assert task.why in text
    for engine in PRESETS.values():
        assert ", ".join(engine.order) in text


def test_presets_are_listed_as_json(command: Command) -> None:
    facts = json.loads(command("presets", "--json").out)
    assert {name: task["settings"] for name, task in facts["tasks"].items()} == {
        name: dict(task.settings) for name, task in TASK_PRESETS.items()
    }
    assert all(task["why"] for task in facts["tasks"].values())
    assert {name: tuple(engine["order"]) for name, engine in facts["orders"].items()} == {
        "(default)": DEFAULT_ORDER,
        **{name: engine.order for name, engine in PRESETS.items()},
    }
    assert facts["orders"]["vllm"]["scopes"]["repetition_penalty"] == "all"
