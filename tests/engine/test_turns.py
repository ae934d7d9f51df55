"""Turns: one thread is in a step at a time, who is done leaves, who waits takes over, and nobody starves."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from unspool.engine.turns import Turns
from unspool.errors import UnspoolError

PATIENCE = 60


class Steps:
    """Steps that count themselves, and notice when two are taken at once."""

    def __init__(self, turns: Turns, limit: int = 10**9) -> None:
        self.turns = turns
        self.limit = limit
        self.taken = 0
        self.overlaps = 0
        self.by: dict[int, int] = {}
        self._inside = threading.Lock()

    def __call__(self) -> bool:
        if self.taken >= self.limit:
            return False
        with self.alone():
            self.taken += 1
            me = threading.get_ident()
            self.by[me] = self.by.get(me, 0) + 1
        return True

    def alone(self) -> threading.Lock:
        if self._inside.locked():
            self.overlaps += 1
        return self._inside

    def drive_to(self, count: int) -> None:
        self.turns.drive(self, lambda: self.taken >= count, None)


def in_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_one_thread_at_a_time_is_in_a_step_and_everyone_gets_what_it_wants() -> None:
    steps = Steps(Turns())
    counts = [1, 7, 50, 300, 1000, 1000, 2000, 3000]
    in_threads([lambda count=count: steps.drive_to(count) for count in counts])  # type: ignore[misc]
    assert steps.overlaps == 0
    assert steps.taken == max(counts)
    assert sum(steps.by.values()) == steps.taken


def test_what_is_wanted_already_takes_no_step() -> None:
    steps = Steps(Turns())
    steps.drive_to(0)
    assert steps.taken == 0


def test_a_driver_that_is_done_leaves_the_rest_to_those_who_wait() -> None:
    turns = Turns()
    steps = Steps(turns)
    waits = threading.Event()

    def follow() -> None:
        waits.set()
        steps.drive_to(20)

    follower = threading.Thread(target=follow)

    def wanted() -> bool:
        if steps.taken == 3 and not waits.is_set():
            follower.start()
            waits.wait(PATIENCE)
        return steps.taken >= 10

    turns.drive(steps, wanted, None)
    follower.join(PATIENCE)
    assert steps.taken == 20
    assert steps.by[threading.get_ident()] >= 10 - 1


def test_one_whose_wish_came_true_returns_although_another_goes_on() -> None:
    turns = Turns()
    steps = Steps(turns)
    enough = threading.Event()
    driver = threading.Thread(target=lambda: turns.drive(steps, enough.is_set, None))
    driver.start()
    for count in (10, 100, 1000):
        steps.drive_to(count)
    assert driver.is_alive()
    enough.set()
    driver.join(PATIENCE)
    assert not driver.is_alive()


def test_driving_within_a_step_is_refused_and_harms_nothing() -> None:
    turns = Turns()
    steps = Steps(turns)
    errors: list[UnspoolError] = []

    def nested() -> bool:
        try:
            steps.drive_to(5)
        except UnspoolError as error:
            errors.append(error)
        return steps()

    turns.drive(nested, lambda: steps.taken >= 2, None)
    assert len(errors) == 2
    assert all("within one of its own callbacks" in str(error) for error in errors)
    with pytest.raises(UnspoolError, match="callbacks"):
        turns.drive(steps, lambda: False, lambda: steps.drive_to(100))
    with pytest.raises(UnspoolError, match="callbacks"):
        turns.between_steps(lambda: steps.drive_to(100))
    steps.drive_to(50)
    assert steps.taken == 50


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["step", "wanted", "each_step", "soon", "between_steps"])
def test_an_error_anywhere_leaves_the_turn_to_others(error: type[BaseException], where: str) -> None:
    turns = Turns()
    steps = Steps(turns)

    def fail() -> bool:
        raise error

    ways: dict[str, Callable[[], object]] = {
        "step": lambda: turns.drive(fail, lambda: False, None),
        "wanted": lambda: turns.drive(steps, lambda: steps.taken > 3 and fail(), None),
        "each_step": lambda: turns.drive(steps, lambda: False, fail),  # type: ignore[arg-type]
        "soon": lambda: turns.soon(fail),  # type: ignore[arg-type]
        "between_steps": lambda: turns.between_steps(fail),
    }
    with pytest.raises(error):
        ways[where]()
    in_threads([lambda: steps.drive_to(10), lambda: steps.drive_to(20)])
    assert steps.taken == 20
    assert turns.between_steps(lambda: 5) == 5


def test_waiting_for_what_never_comes_is_an_error() -> None:
    turns = Turns()
    with pytest.raises(UnspoolError, match="nothing left to compute"):
        turns.drive(Steps(turns, limit=3), lambda: False, None)


def test_who_acts_between_steps_is_never_within_one_and_holds_nobody_up() -> None:
    turns = Turns()
    steps = Steps(turns)
    over = threading.Event()
    acted = [0] * 6

    def act(index: int) -> None:
        with steps.alone():
            acted[index] += 1

    def keep_acting(index: int) -> None:
        while not over.is_set():
            turns.between_steps(lambda: act(index))

    def drive() -> None:
        steps.drive_to(2000)

    def all_drive() -> None:
        try:
            in_threads([drive, drive])
        finally:
            over.set()

    in_threads([*(lambda i=i: keep_acting(i) for i in range(6)), all_drive])
    assert steps.overlaps == 0
    assert steps.taken == 2000
    assert all(acted)


def test_what_is_to_be_done_soon_is_done_at_once_or_left_to_the_driver() -> None:
    turns = Turns()
    done: list[str] = []
    turns.soon(lambda: done.append("alone"))
    assert done == ["alone"]

    stepped: list[bool] = []

    def step() -> bool:
        turns.soon(lambda: done.append("within"))
        stepped.append(True)
        return True

    turns.drive(step, lambda: bool(stepped), None)
    assert done == ["alone"]
    turns.soon(lambda: turns.soon(lambda: done.append("nested")))
    assert done == ["alone"]


def test_sleepers_wake_when_they_are_told() -> None:
    turns = Turns()
    ready = threading.Event()
    sleepers = [threading.Thread(target=lambda: turns.sleep(ready.is_set)) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.start()
    turns.wake()
    assert all(sleeper.is_alive() for sleeper in sleepers)
    ready.set()
    turns.wake()
    for sleeper in sleepers:
        sleeper.join(PATIENCE)
        assert not sleeper.is_alive()


def test_work_that_comes_after_a_step_has_looked_is_no_reason_to_give_up() -> None:
    turns, looks, steps = Turns(), iter([True, False]), []

    def step() -> bool:
        steps.append(1)
        return len(steps) > 1

    turns.drive(step, lambda: len(steps) > 1, None, lambda: next(looks))
    assert len(steps) == 2


class Interrupts:
    """Interrupts the main thread again and again, at most once in each call, wherever that is by then."""

    def __init__(self) -> None:
        self.armed = self.over = False
        self.count = 0

    def _handle(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def _send(self) -> None:
        chance, main = random.Random(0), threading.main_thread().ident
        assert main is not None
        while not self.over:
            time.sleep(chance.random() * 0.0004)
            signal.pthread_kill(main, signal.SIGUSR1)

    def during(self, act: Callable[[], None]) -> None:
        try:
            self.armed = True
            act()
            self.armed = False
        except KeyboardInterrupt:
            self.count += 1

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        self._sender = threading.Thread(target=self._send)
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        self._sender.join(PATIENCE)
        signal.signal(signal.SIGUSR1, self._before)


def test_an_interrupt_at_any_point_leaves_the_lock_and_the_turn_to_others() -> None:
    turns = Turns()
    steps, over = Steps(turns), threading.Event()
    ways: list[Callable[[], object]] = [
        lambda: steps.drive_to(steps.taken + 3),
        lambda: turns.between_steps(lambda: None),
        lambda: turns.soon(lambda: None),
        turns.wake,
    ]

    def go_on() -> None:
        while not over.is_set():
            steps.drive_to(steps.taken + 2)

    others = [threading.Thread(target=go_on) for _ in range(2)]
    for other in others:
        other.start()
    try:
        with Interrupts() as interrupts:
            end = time.monotonic() + 4
            while time.monotonic() < end:
                for way in ways:
                    interrupts.during(way)  # type: ignore[arg-type]
    finally:
        over.set()
        for other in others:
            other.join(PATIENCE)
    assert not any(other.is_alive() for other in others)
    assert interrupts.count > 100
    assert steps.overlaps == 0
    in_threads([lambda: steps.drive_to(steps.taken + 10), lambda: turns.between_steps(lambda: None)])


def test_one_that_waits_takes_over_even_if_nobody_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may end a driver before it has told others that it is gone."""
    turns = Turns()
    steps, waits = Steps(turns), threading.Event()
    follower = threading.Thread(target=lambda: (waits.set(), steps.drive_to(20)))  # type: ignore[func-returns-value]

    def wanted() -> bool:
        if steps.taken == 3 and not waits.is_set():
            follower.start()
            waits.wait(PATIENCE)
            time.sleep(0.1)
        return steps.taken >= 10

    monkeypatch.setattr(turns, "wake", lambda: None)
    turns.drive(steps, wanted, None)
    follower.join(PATIENCE)
    assert not follower.is_alive()
    assert steps.taken == 20


def test_a_thread_that_parks_the_others_is_alone_to_take_steps() -> None:
    turns = Turns()
    steps, over = Steps(turns), threading.Event()
    others = [threading.Thread(target=lambda: turns.drive(steps, over.is_set, None)) for _ in range(3)]
    for other in others:
        other.start()
    turns.park(os.getpid() + 1)  # another process: this one's threads go on
    steps.drive_to(steps.taken + 5)
    assert len(steps.by) > 0
    turns.park(os.getpid())
    taken = steps.taken
    time.sleep(0.05)
    assert steps.taken == taken
    steps.drive_to(taken + 5)
    assert steps.taken == taken + 5
    over.set()
    turns.wake()
    for other in others:
        other.join(PATIENCE)
        assert not other.is_alive()
