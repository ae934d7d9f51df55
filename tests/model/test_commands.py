"""``pull``, ``models`` and ``info`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.model import files
from unspool.cli import models as commands
from unspool.errors import ModelNotFoundError

app = typer.Typer()
for command in (commands.pull, commands.models, commands.info):
    app.command()(command)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return files.write(tmp_path / "tiny.gguf")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_pull_prints_where_the_model_is(path: Path) -> None:
    assert run("pull", str(path)) == (0, f"{path}\n", "")


@pytest.mark.parametrize("command", ["pull", "info"])
def test_an_unknown_model_is_left_to_the_command_line_to_say(command: str) -> None:
    result = CliRunner().invoke(app, [command, "no-such-model"])
    assert isinstance(result.exception, ModelNotFoundError)
    assert result.stdout == ""


def test_models_lists_names_and_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNSPOOL_CACHE", str(tmp_path))
    status, out, _ = run("models", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["name"] for row in rows] == ["smollm2", "gemma3-270m"]
    assert all(row["path"] is None for row in rows)
    assert "unspool pull smollm2" in run("models")[1]


@pytest.mark.parametrize("license_", ["MIT", ["MIT", "0BSD"], [1.0], 5])
def test_info_shows_what_a_file_says_of_itself_whatever_it_is(tmp_path: Path, license_: Any) -> None:
    path = files.write(tmp_path / "m.gguf", files.metadata(general__license=license_))
    status, out, _ = run("info", str(path), "--json")
    assert status == 0
    assert isinstance(json.loads(out)["license"], str)
    assert run("info", str(path))[0] == 0


def test_info_shows_what_the_file_holds(path: Path) -> None:
    status, out, _ = run("info", str(path), "--json")
    facts = json.loads(out)
    assert status == 0
    weights = files.tensors()
    assert facts["parameters"] == sum(tensor.size for tensor in weights.values())
    assert facts["tensor_bytes"] == 4 * facts["parameters"]
    assert facts["quantization"]["F32"]["tensors"] == len(weights)
    assert facts["context_length"] == 128
    assert facts["cache_bytes_per_token"] == 2 * files.LAYERS * files.KV_HEADS * 16 * 2
    assert facts["special_tokens"] == ["<|end|>", "<|start|>"]
    assert facts["ends_with"] == ["<|end|>"]
    assert facts["chat_template"] is True
    text = run("info", str(path))[1]
    assert f"{facts['parameters']:,}" in text
    assert "F32: " in text
