"""Whose turn it is to take an engine's steps: one thread drives, the others wait for what it brings."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from unspool.errors import UnspoolError

PATIENCE = 0.5
"""Seconds after which one that waits for a turn looks again, should an interrupt have swallowed the word."""
PARTING_SECONDS = 10.0
"""How long the end of a program waits for the step that another thread is in."""

T = TypeVar("T")


class Turns:
    """One thread at a time may drive; one that waits takes over when the driver has what it wants.

    An interrupt (Ctrl-C) may come wherever Python calls, returns or loops, and none may leave a turn taken or
    a lock held. So the lock is taken by ``with`` alone, which for a lock of Python's own is not interrupted
    halfway; a turn is given up by plain assignments; and nobody waits while holding the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection may lead to ``soon`` from within
        self._driver: int | None = None
        """The thread whose turn it is."""
        self._bells: set[threading.Lock] = set()
        """One for each thread that waits, locked until there is news."""
        self._acting: set[object] = set()
        """One thing for each thread that is to act between two steps."""
        self._parked_by: int | None = None
        """The thread that is left alone to drive, as the program ends."""

    def drive(
        self,
        step: Callable[[], bool],
        wanted: Callable[[], bool],
        each_step: Callable[[], None] | None,
        has_work: Callable[[], bool] = lambda: False,
    ) -> None:
        """Return when ``wanted()``: take steps until then, or wait while another thread takes them.

        step: takes one; False where there was nothing to do.
        has_work: whether there is something to do by now.

        Raises ``UnspoolError`` within a step, and where there is nothing to do and it is not ``wanted()``.
        """
        me = threading.get_ident()
        if self._driver == me:
            raise UnspoolError("an engine cannot be waited for within one of its own callbacks")
        try:
            while not wanted():
                if self._take(me):
                    self._take_steps(step, wanted, each_step, has_work)
                    self._let_others_act()
                else:
                    self._wait_while(lambda: self._taken_from(me) and not wanted(), PATIENCE)
        finally:
            if self._driver == me:
                self._driver = None
            self.wake()

    def soon(self, act: Callable[[], None]) -> None:
        """Act at once where nobody drives; else it is for the driver to find what there is to do."""
        try:
            with self._lock:
                if self._driver is None:
                    self._act(act)
        finally:
            self.wake()

    def between_steps(self, act: Callable[[], T]) -> T:
        """Act while no thread is in a step: after the one that another is in. Within a step, at once."""
        if self._driver == threading.get_ident():
            return act()
        ticket = object()
        try:
            self._acting.add(ticket)
            while True:
                with self._lock:
                    if self._driver is None:
                        return self._act(act)
                self._wait_while(lambda: self._driver is not None, PATIENCE)
        finally:
            self._acting.discard(ticket)
            self.wake()

    def sleep(self, until: Callable[[], bool]) -> None:
        """Wait until ``until()``, looked at after each ``wake``."""
        while not until():
            self._wait_while(lambda: not until())

    def wake(self) -> None:
        """Let waiting threads look again."""
        for bell in tuple(self._bells):
            with suppress(RuntimeError):  # it rings already
                bell.release()

    def park(self, process: int) -> None:
        """As the program ends: let no other thread begin a step, and wait for one that is under way.

        A thread that the interpreter leaves behind must not be in native code when it is gone. Does nothing
        in a process other than ``process``, where the other threads are not.
        """
        me = threading.get_ident()
        if os.getpid() != process or self._driver == me:
            return
        self._parked_by = me
        end = time.monotonic() + PARTING_SECONDS
        while self._driver is not None and (left := end - time.monotonic()) > 0:
            self._wait_while(lambda: self._driver is not None, min(left, PATIENCE))

    def _taken_from(self, me: int) -> bool:
        """Whether this thread cannot have the turn now."""
        return self._driver is not None or self._parked_by not in (None, me)

    def _act(self, act: Callable[[], T]) -> T:
        """Act as the driver: a garbage collection meanwhile may lead to this place again."""
        self._driver = threading.get_ident()
        try:
            return act()
        finally:
            self._driver = None

    def _take(self, me: int) -> bool:
        """Become the driver, where there is none; whether this thread drives now."""
        with self._lock:
            if self._taken_from(me):
                return False
            self._driver = me
            return True

    def _wait_while(self, blocked: Callable[[], bool], seconds: float = -1) -> None:
        """Wait for news while ``blocked()``, which is asked once: for ever, or for some seconds."""
        bell = threading.Lock()
        bell.acquire()
        try:
            self._bells.add(bell)
            if blocked():  # asked when the bell hangs: what changes from now on rings it
                bell.acquire(timeout=seconds)
        finally:
            self._bells.discard(bell)

    def _take_steps(
        self,
        step: Callable[[], bool],
        wanted: Callable[[], bool],
        each_step: Callable[[], None] | None,
        has_work: Callable[[], bool],
    ) -> None:
        """Take steps until ``wanted()``, and one at least before another thread acts between two."""
        while not wanted():
            if not step():
                if wanted() or self._acting:
                    return
                if has_work():  # it came after the step had looked
                    continue
                raise UnspoolError("there is nothing left to compute, and what is waited for has not come")
            if each_step is not None:
                each_step()
            if self._acting or self._parked_by is not None:
                return
            if self._bells:
                self.wake()

    def _let_others_act(self) -> None:
        """Stop driving until those have acted who wait for it now; others wait a step."""
        self._driver = None
        self.wake()
        waiting = frozenset(self._acting)
        while not waiting.isdisjoint(self._acting):
            self._wait_while(lambda: not waiting.isdisjoint(self._acting), PATIENCE)
