"""How an engine stands and what it has done, as plain numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from unspool.cache import CacheUse, measure
from unspool.engine.branch import Branch
from unspool.engine.cached_backend import CachedBackend
from unspool.engine.computer import Computer
from unspool.engine.flight import Flight
from unspool.engine.scheduler import Scheduler

WINDOW_SECONDS = 10.0
"""Over how long the present speed is taken."""


@dataclass(frozen=True)
class EngineStats:
    """An engine at one moment; counts and seconds are since it was made."""

    running: int
    """Branches with a place in the cache."""
    waiting: int
    """Branches without one."""
    requests: int
    """Requests that have begun and not ended."""
    cache: CacheUse
    """The main backend's blocks."""
    cache_type: str
    """What keys and values are kept in there."""
    cache_bytes: int
    """What its blocks take."""
    hit_rate: float
    """Of the prompt tokens of requests that got a place, the share that was found in the cache; 0 to 1."""
    tokens_per_second: float
    """Tokens generated a second over the last ten seconds, or since the first step if that is less."""
    steps: int
    prompt_tokens: int
    """Tokens computed that were known before: prompts, and what a preemption made to be computed again."""
    generated_tokens: int
    """Tokens drawn and final."""
    preemptions: int
    finished: int
    """Requests that ended by themselves."""
    cancelled: int
    failed: int
    step_seconds: float
    """In steps: planning, computing, drawing and growing."""
    forward_seconds: float
    """Of those, in forward passes."""
    sample_seconds: float
    """Of those, drawing from rows."""

    @property
    def overhead(self) -> float:
        """The share of a step that goes neither to a forward pass nor to drawing; 0 to 1."""
        if self.step_seconds == 0:
            return 0.0
        return 1 - (self.forward_seconds + self.sample_seconds) / self.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it."""
        made = asdict(self)
        made["cache"]["waste"] = self.cache.waste
        return {**made, "overhead": self.overhead}


class Meter:
    """What an engine counts as it goes."""

    def __init__(self) -> None:
        self.steps = self.prompt_tokens = self.generated_tokens = 0
        self.finished = self.cancelled = self.failed = 0
        self.step_seconds = 0.0
        self._recent: deque[tuple[float, int]] = deque()

    def step(self, known: int, generated: int, began: float, ended: float) -> None:
        """Count one step that computed ``known`` tokens again or of prompts, and made ``generated`` final."""
        self.steps += 1
        self.generated_tokens += generated
        self.prompt_tokens += known
        self.step_seconds += ended - began
        self._recent.append((ended, generated))
        while self._recent[0][0] < ended - WINDOW_SECONDS:
            self._recent.popleft()

    def tokens_per_second(self) -> float:
        """Tokens generated a second of late."""
        now = perf_counter()
        recent = [(when, count) for when, count in tuple(self._recent) if when >= now - WINDOW_SECONDS]
        if len(recent) < 2:
            return 0.0
        return sum(count for _, count in recent[1:]) / (now - recent[0][0])


def known_tokens(planned: Sequence[Branch]) -> int:
    """How many tokens of a step are neither the newest of a branch, which its last row gave, nor guesses."""
    count = 0
    for branch in planned:
        newest = 1 if branch.row and branch.token_ids else 0
        guesses = 0 if branch.drafted is None else len(branch.drafted.tree)
        for track in branch.tracks:
            count += len(track.run) - newest - guesses
    return count


def snapshot(
    meter: Meter, computer: Computer, scheduler: Scheduler, main: CachedBackend, flights: Sequence[Flight]
) -> EngineStats:
    """An engine's numbers between two steps."""
    running = tuple(scheduler.running)
    tables = [track.table for branch in running for track in branch.tracks if track.home is main]
    queried = scheduler.queried_tokens
    return EngineStats(
        running=len(running),
        waiting=len(scheduler.waiting),
        requests=len(flights),
        cache=measure(main.pool, tables),
        cache_type=main.backend.cache_type,
        cache_bytes=main.pool.num_tokens * main.backend.spec.cache_bytes_per_token(main.backend.cache_type),
        hit_rate=scheduler.cached_tokens / queried if queried else 0.0,
        tokens_per_second=meter.tokens_per_second(),
        steps=meter.steps,
        prompt_tokens=meter.prompt_tokens,
        generated_tokens=meter.generated_tokens,
        preemptions=scheduler.preemptions,
        finished=meter.finished,
        cancelled=meter.cancelled,
        failed=meter.failed,
        step_seconds=meter.step_seconds,
        forward_seconds=computer.forward_seconds,
        sample_seconds=computer.sampler.seconds,
    )
