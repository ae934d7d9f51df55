"""Ways to compute a mix of requests, none of which may be seen in what the requests get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engine.mix import Asked, Mix
from unspool.cache import BLOCK_SIZE
from unspool.engine.branch import Branch
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.results import Candidate

Watch = Callable[[Sequence[Flight]], None]
NewEngine = Callable[..., Engine]
"""Makes engines on one model: ``(num_blocks, *, threads, step_tokens, sharing)``, the options optional."""

ROOMY = 1500
"""Cache blocks in which nothing is preempted, and of which a mix's prompts all stay."""


@dataclass(frozen=True)
class Way:
    """How requests come, and the engine that they come to.

    late: whether most come while others run.
    rising: whether each goes before those that came earlier.
    tight: whether the cache just holds the largest of them.
    """

    shuffled: bool = False
    late: bool = False
    rising: bool = False
    step_tokens: int | None = None
    sharing: bool = True
    threads: int = 1
    streaming: bool = False
    tight: bool = False

    def check(self, mix: Mix, new_engine: NewEngine) -> None:
        """Compute a mix in this way; assert that nothing of it shows and that nothing is left of it."""
        mix = mix.shuffled(seed=1) if self.shuffled else mix
        mix = mix.rising() if self.rising else mix
        engine = new_engine(
            mix.blocks if self.tight else ROOMY,
            threads=self.threads,
            step_tokens=self.step_tokens,
            sharing=self.sharing,
        )
        gaps = np.random.default_rng(2).integers(0, 9, len(mix.requests))
        arrivals = np.cumsum(gaps).tolist() if self.late else [0] * len(mix.requests)
        flights = compute(engine, mix.requests, arrivals, streaming=self.streaming)
        mix.check(candidates_of(flights))
        if self.streaming:
            mix.check([joined(flight) for flight in flights])
        if not self.sharing:
            assert all(flight.cached_tokens == 0 for flight in flights)
        stats = engine.stats()
        assert stats.steps > arrivals[-1], "not every request came while others ran"
        if self.tight:
            assert stats.preemptions > len(mix.requests) / 20
        elif self.step_tokens is None:  # in small steps urgent requests take the places of others
            assert stats.preemptions == 0
        assert_empty(engine)


WAYS = {
    "all together": Way(),
    "in another order": Way(shuffled=True),
    "while others run": Way(late=True),
    "16 tokens a step": Way(step_tokens=16),
    "a prefix cache off": Way(sharing=False),
    "two threads": Way(threads=2),
    "streaming": Way(streaming=True),
    "each before the last, in a small cache": Way(shuffled=True, late=True, rising=True, tight=True),
    "all of these": Way(
        shuffled=True, late=True, step_tokens=16, sharing=False, threads=2, streaming=True, tight=True
    ),
    "all of these, sharing": Way(
        shuffled=True, late=True, step_tokens=16, threads=2, streaming=True, tight=True
    ),
}


def compute(
    engine: Engine,
    requests: Sequence[Asked],
    arrivals: Sequence[int] | None = None,
    *,
    streaming: bool = False,
    watch: Watch | None = None,
) -> list[Flight]:
    """The requests' flights, all ended. Fails where the engine computes nothing more and some have not.

    arrivals: after how many steps each comes, in ascending order; ``None``: all at once.
    watch: called after every step with the flights that have come.
    """
    flights: list[Flight] = []
    steps = stuck = 0
    while len(flights) < len(requests) or engine.busy:
        for asked in requests[len(flights) :]:
            if arrivals is not None and arrivals[len(flights)] > steps:
                break
            flights.append(engine.submit(engine.prepare(asked.prompt, asked.params), streaming=streaming))
        computed = engine.meter.steps
        engine.step()
        steps += 1
        stuck = 0 if engine.meter.steps > computed or len(flights) < len(requests) else stuck + 1
        assert stuck < 100, f"{sum(not flight.done for flight in flights)} requests never end"
        if watch is not None:
            watch(flights)
    return flights


def alone(requests: Sequence[Asked], new_engine: NewEngine) -> Mix:
    """Requests with what each gets in an engine of its own."""
    made: list[list[Candidate]] = []
    for asked in requests:
        engine = new_engine((asked.params.n + 1) * asked.blocks)
        made += candidates_of(compute(engine, [asked]))
        assert engine.stats().preemptions == 0
    return Mix(list(requests), made)


def candidates_of(flights: Sequence[Flight]) -> list[list[Candidate]]:
    """What each flight came to."""
    return [flight.generation().candidates for flight in flights]


def joined(flight: Flight) -> list[Candidate]:
    """The candidates that a streamed flight's pieces make."""
    made = []
    for index in sorted({chunk.index for chunk in flight.outbox}):
        own = [chunk for chunk in flight.outbox if chunk.index == index]
        reason = own[-1].finish_reason
        assert reason is not None
        assert all(chunk.finish_reason is None for chunk in own[:-1])
        text = "".join(chunk.text for chunk in own)
        tokens = [token for chunk in own for token in chunk.tokens]
        made.append(
            Candidate(index, text, [token.id for token in tokens], tokens, reason, own[-1].stop_reason)
        )
    return made


class OldestKeepsItsPlace:
    """A watch: of the branches that have not ended, the first in order runs until it ends, once it runs.

    Only where no request comes later that goes before those that are there.
    """

    def __init__(self) -> None:
        self.watched = 0
        """Steps in which there was such a branch."""
        self._oldest: Branch | None = None

    def __call__(self, flights: Sequence[Flight]) -> None:
        oldest = self._oldest
        if oldest is not None:
            self.watched += 1
            assert oldest.running or not oldest.growing, f"branch {oldest.order} lost its place"
        growing = (branch for flight in flights for branch in flight.growing)
        first = min(growing, key=lambda branch: branch.order, default=None)
        self._oldest = first if first is not None and first.running else None


def check_tight(mix: Mix, new_engine: NewEngine, parts: int, **options: Any) -> int:
    """Compute a mix by parts, each in a cache that just holds the largest of its requests.

    Asserts that nothing of it shows, and that the oldest is never preempted. Returns how often others were.
    """
    preemptions = 0
    for part in mix.by_size(parts):
        engine, oldest = new_engine(part.blocks, **options), OldestKeepsItsPlace()
        flights = compute(engine, part.requests, watch=oldest)
        part.check(candidates_of(flights))
        stats = engine.stats()
        assert stats.preemptions == sum(flight.preemptions for flight in flights)
        assert oldest.watched > stats.steps / 2
        assert_empty(engine)
        preemptions += stats.preemptions
    return preemptions


def check_warm(mix: Mix, new_engine: NewEngine) -> None:
    """Compute a mix twice in one engine; the second time, every full block of every prompt is there."""
    engine = new_engine(2 * ROOMY)
    cold = compute(engine, mix.requests)
    mix.check(candidates_of(cold))
    again = mix.shuffled(seed=3)
    warm = compute(engine, again.requests)
    again.check(candidates_of(warm))
    read = [asked.params.prompt_logprobs is not None for asked in again.requests]  # every row is computed
    computed = [
        0 if whole else (len(asked.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        for asked, whole in zip(again.requests, read, strict=True)
    ]
    assert [flight.cached_tokens for flight in warm] == computed
    assert 0 < sum(flight.cached_tokens for flight in cold) < sum(computed), "some begin alike"
    assert_empty(engine)


def assert_empty(engine: Engine) -> None:
    """Nothing runs, waits or holds a block."""
    pool, stats = engine.main.pool, engine.stats()
    assert not engine.busy
    assert engine.scheduler.idle
    assert (stats.running, stats.waiting, stats.requests) == (0, 0, 0)
    assert pool.num_free == pool.num_blocks
    assert not any(pool.references(block) for block in range(pool.num_blocks))
