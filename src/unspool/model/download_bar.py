"""A progress bar on the terminal while a model is fetched."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


class DownloadBar:
    """Shows one bar on standard error; call it as the registry's ``Progress``."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self._bar.add_task("", total=None)
        self._what = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes of ``what`` are done; a total of 0 is not known."""
        if what != self._what:
            self._what = what
            self._bar.reset(self._task, description=what, total=total or None)
        self._bar.update(self._task, completed=done, total=total or None)
