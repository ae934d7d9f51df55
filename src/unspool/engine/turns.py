"""Whose turn it is to take an engine's steps: one thread drives, the others wait for what it brings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from unspool.errors import UnspoolError

T = TypeVar("T")


class Turns:
    """One thread at a time may drive; one that waits takes over when the driver has what it wants."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._driver: int | None = None
        self._followers = self._acting = self._acted = 0

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
                if self._take(me, wanted):
                    self._take_steps(step, wanted, each_step, has_work)
                    self._let_others_act()
        finally:
            self._resign(me)

    def soon(self, act: Callable[[], None]) -> None:
        """Act at once where nobody drives; else it is for the driver to find what there is to do."""
        with self._changed:
            if not self._driven():
                self._act(act)
            self._changed.notify_all()

    def between_steps(self, act: Callable[[], T]) -> T:
        """Act while no thread is in a step: after the one that another is in. Within a step, at once."""
        with self._changed:
            if self._driver == threading.get_ident():
                return act()
            self._acting += 1
            try:
                while self._driven():
                    self._changed.wait()
                return self._act(act)
            finally:
                self._acting -= 1
                self._acted += 1
                self._changed.notify_all()

    def sleep(self, until: Callable[[], bool]) -> None:
        """Wait until ``until()``, looked at after each ``wake``."""
        with self._changed:
            while not until():
                self._changed.wait()

    def wake(self) -> None:
        """Let waiting threads look again."""
        with self._changed:
            self._changed.notify_all()

    def _driven(self) -> bool:
        return self._driver is not None

    def _act(self, act: Callable[[], T]) -> T:
        """Act as the driver: a garbage collection meanwhile may lead to this place again."""
        self._driver = threading.get_ident()
        try:
            return act()
        finally:
            self._driver = None

    def _take(self, me: int, wanted: Callable[[], bool]) -> bool:
        """Become the driver, or wait for one to bring what is wanted; whether this thread drives now."""
        with self._changed:
            if not self._driven():
                self._driver = me
                return True
            self._followers += 1
            try:
                while self._driven() and not wanted():
                    self._changed.wait()
            finally:
                self._followers -= 1
            return False

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
            if self._acting:
                return
            if self._followers:
                self.wake()

    def _resign(self, me: int) -> None:
        with self._changed:
            if self._driver == me:
                self._driver = None
                self._changed.notify_all()

    def _let_others_act(self) -> None:
        """Stop driving until as many have acted between two steps as wait for it now; others wait a step."""
        with self._changed:
            self._driver = None
            self._changed.notify_all()
            enough = self._acted + self._acting
            while self._acted < enough:
                self._changed.wait()
