"""The command line, run in this process."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from unspool.cli.main import main


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
