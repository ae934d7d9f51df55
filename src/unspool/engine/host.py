"""Where what callers bring in runs: combinations, readers, rules, proposers, strategies, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from unspool.engine.flight import Flight

T = TypeVar("T")
Fail = Callable[["Flight", BaseException], None]
"""Ends a request with an error."""


class Host:
    """Knows whose code is running.

    guest: the request whose code it is. It stays there when an interrupt, or the end of the program, goes
        through its code: whoever brings the engine in order then ends it, as its code may have been stopped
        halfway, or would raise the same again.
    """

    def __init__(self) -> None:
        self.guest: Flight | None = None

    def run(self, flight: Flight, act: Callable[[], T], fail: Fail) -> T | None:
        """What a request's code returns; ``None`` where it raised, after ``fail``. May nest.

        Raises what comes from outside or is for the program, as ``KeyboardInterrupt`` and ``SystemExit``: in
        the main thread, all that is neither an ``Exception`` nor ends a task or a generator. All else is the
        request's own, and goes no further: another caller may be taking the steps.
        """
        before, self.guest = self.guest, flight
        made = None
        try:
            made = act()
        except BaseException as error:
            if current_thread() is main_thread() and is_for_program(error):
                raise
            fail(flight, error)
        self.guest = before
        return made


def is_for_program(error: BaseException) -> bool:
    """Whether an error is neither an ordinary one nor one that ends a task or a generator."""
    if isinstance(error, (Exception, GeneratorExit)):
        return False
    from asyncio import CancelledError  # only here: it takes long to import

    return not isinstance(error, CancelledError)
