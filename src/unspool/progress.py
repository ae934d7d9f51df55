"""A bar for long work: how many of a list's requests are done, and how fast tokens come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from time import perf_counter

from unspool.engine.flight import Flight

REDRAW_SECONDS = 0.1


@contextmanager
def progress_of(
    flights: Sequence[Flight], wanted: bool | None
) -> Generator[Callable[[], None] | None, None, None]:
    """Gives a function to call after each step, or None where no bar is drawn.

    wanted: ``None`` draws one where there are several requests and standard error is a terminal; ``True``
        also where it is none. One request alone has no bar.
    """
    if wanted is None:  # not as Rich would tell: FORCE_COLOR makes no terminal of a file
        wanted = sys.stderr is not None and sys.stderr.isatty()
    if not wanted or len(flights) < 2:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, force_terminal=True)
    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=len(flights), rate=0.0)
        began = drawn = perf_counter()

        def each_step() -> None:
            nonlocal drawn
            now = perf_counter()
            if now - drawn < REDRAW_SECONDS:
                return
            drawn = now
            done = sum(flight.done for flight in flights)
            tokens = sum(branch.final for flight in flights for branch in flight.branches)
            bar.update(task, completed=done, rate=tokens / (now - began), refresh=True)

        yield each_step
        bar.update(task, completed=sum(flight.done for flight in flights), refresh=True)
