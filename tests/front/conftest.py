"""A tiny model in a file, and an LLM of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import unspool
from tests.front.commands import Command
from tests.reference.tiny import random_weights, tiny_spec, write_gguf


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_spec()
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", spec, random_weights(spec))


@pytest.fixture(scope="session")
def llm(tiny_path: Path) -> Iterator[unspool.LLM]:
    with unspool.LLM(tiny_path, threads=1) as made:
        yield made


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line: what it printed, and its exit status."""
    return Command(monkeypatch, capsys)
