"""A peer engine in its own interpreter, spoken to in lines of JSON."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent


class PeerError(RuntimeError):
    """A peer could not be started, or stopped answering."""


class Peer:
    """One process of ``benchmarks.peers.<module>``, alive until closed.

    module: the peer's script in ``benchmarks/peers``.
    python: an interpreter that has the peer installed.
    job: what the engine is started with; ``started`` is its answer.

    Raises ``PeerError`` with the end of what the peer printed.
    """

    def __init__(self, module: str, python: Path, job: dict[str, Any]) -> None:
        self._module = module
        self._printed = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        try:
            self._process = subprocess.Popen(
                [str(python), "-m", f"benchmarks.peers.{module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                text=True,
                cwd=ROOT,
            )
        except OSError as error:
            raise PeerError(f"{module}: {python} cannot be run: {error}") from error
        self.started = self.ask(job)

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """One job's answer. Raises ``PeerError``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended without an answer"}
        if "error" in answer:
            self._process.wait()
            self._printed.seek(0)
            printed = self._printed.read()[-2000:]
            raise PeerError(f"{self._module}: {answer['error']}\n{printed}")
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._printed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
