"""The numbers of requests and of the engine, against a recount and a clock that only steps move."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import SPEC, WEIGHTS, generate, make_engine, read_rows
from tests.reference.llama import ReferenceBackend
from tests.reference.scripted import ScriptedBackend
from unspool.backend.base import StepBatch, StepOutput
from unspool.cache import BLOCK_SIZE
from unspool.engine import engine as engine_module
from unspool.engine import flight as flight_module
from unspool.engine import scheduler as scheduler_module
from unspool.engine import stats as stats_module
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.engine.stats import EngineStats, Meter
from unspool.params import SamplingParams, Settings
from unspool.speculate.draft import DraftTree

RNG = np.random.default_rng(8)
PROMPTS = [[int(t) for t in RNG.integers(3, SPEC.vocab_size, n)] for n in (1, 15, 16, 17, 33, 40, 60)]
PROMPTS.append(PROMPTS[5][:32] + PROMPTS[6][:9])


class Counting(ReferenceBackend):
    """Counts the tokens that it computes."""

    computed = 0

    def forward(self, step: StepBatch) -> StepOutput:
        self.computed += len(step.tokens)
        return super().forward(step)


def recount(engine: Engine, flights: Sequence[Flight], cancelled: int) -> None:
    """Compare the stats between two steps with what requests, branches and block tables say."""
    now = engine.stats()
    begun = [flight for flight in flights if flight.branches]
    branches = [branch for flight in begun for branch in flight.branches]
    tables = [track.table for branch in branches for track in branch.tracks]
    held = {int(block) for table in tables for block in table.blocks}
    filled = {(int(t.blocks[i // BLOCK_SIZE]), i % BLOCK_SIZE) for t in tables for i in range(t.length)}
    waits = [b for b in branches if b.growing and not b.running and (b.index == 0 or b.flight.all_begun)]
    assert now.running == sum(branch.running for branch in branches)
    assert now.waiting == len(waits)
    assert now.requests == sum(not flight.done for flight in begun)
    assert (now.cache.held, now.cache.filled) == (len(held), len(filled))
    assert now.cache.allocated_slots == BLOCK_SIZE * len(held)
    if held:
        assert now.cache.waste == pytest.approx(1 - len(filled) / (BLOCK_SIZE * len(held)))
    assert now.cache.held + now.cache.kept <= now.cache.blocks == engine.main.pool.num_blocks
    assert now.generated_tokens == sum(branch.final for branch in branches)
    drawing = sum(branch.final > 0 for branch in branches)
    backend = engine.main.backend
    assert isinstance(backend, Counting)
    assert now.prompt_tokens == backend.computed - now.generated_tokens + drawing
    started = [flight for flight in begun if flight.started > 0]
    queried = sum(len(flight.request.prompt) for flight in started)
    assert now.hit_rate == (sum(f.cached_tokens for f in started) / queried if queried else 0)
    assert now.preemptions == sum(flight.preemptions for flight in begun)
    assert now.cancelled == cancelled
    assert now.finished + now.cancelled + now.failed == sum(flight.done for flight in flights)
    assert now.failed == 0


@settings(max_examples=40)
@given(data=st.data())
def test_the_stats_are_a_recount_after_every_step(data: st.DataObject) -> None:
    backend = Counting(SPEC, WEIGHTS, max_step_tokens=data.draw(st.sampled_from([5, 40, 256])))
    engine = make_engine(backend, num_blocks=data.draw(st.integers(7, 24)))
    flights: list[Flight] = []
    cancelled = 0
    for arrival in range(data.draw(st.integers(1, 6))):
        asked: Settings = {
            "seed": arrival,
            "n": data.draw(st.integers(1, 3)),
            "max_tokens": data.draw(st.integers(1, 20)),
            "ignore_eos": True,
            "priority": data.draw(st.integers(0, 1)),
        }
        prompt = data.draw(st.sampled_from(PROMPTS))
        flights.append(engine.submit(engine.prepare(prompt, SamplingParams(**asked))))
        for _ in range(data.draw(st.integers(0, 6))):
            engine.step()
            recount(engine, flights, cancelled)
        victim = data.draw(st.sampled_from([None, *flights]))
        if victim is not None and not victim.done:
            engine.cancel(victim)
            cancelled += 1
            recount(engine, flights, cancelled)
    while engine.step():
        recount(engine, flights, cancelled)
    recount(engine, flights, cancelled)
    now = engine.stats()
    assert (now.running, now.waiting, now.requests, now.cache.held, now.cache.waste) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("max_tokens", [1, 2, 30])
def test_a_prompt_is_counted_once_however_soon_its_request_ends(max_tokens: int) -> None:
    engine = make_engine(sharing=False)
    for prompt in PROMPTS:
        generate(engine, prompt, max_tokens=max_tokens, ignore_eos=True)
    now = engine.stats()
    assert now.prompt_tokens == sum(map(len, PROMPTS))
    assert now.generated_tokens == max_tokens * len(PROMPTS)
    assert (now.finished, now.hit_rate) == (len(PROMPTS), 0)
    read_rows(engine, PROMPTS[4])
    assert engine.stats().prompt_tokens == now.prompt_tokens + len(PROMPTS[4])


class Wrong:
    """Always guesses three tokens that are never said."""

    def propose(self, tokens: Sequence[int], most: int) -> DraftTree | None:
        return DraftTree.chain([7, 7, 7][:most])


def test_guesses_are_no_prompt() -> None:
    engine = make_engine(ScriptedBackend(SPEC, [9] * 128))
    request = engine.prepare([9, 9, 9], SamplingParams(temperature=0, max_tokens=20), proposer=Wrong())
    flight = engine.submit(request)
    engine.drive(lambda: flight.done)
    assert flight.generation().token_ids == [9] * 20
    assert (engine.stats().prompt_tokens, engine.stats().generated_tokens) == (3, 20)


def test_what_was_found_in_the_cache_is_counted_and_computed_no_more() -> None:
    engine = make_engine(Counting(SPEC, WEIGHTS))
    first = generate(engine, PROMPTS[6], max_tokens=1, ignore_eos=True)
    again = generate(engine, PROMPTS[6], max_tokens=1, ignore_eos=True)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 48)
    now = engine.stats()
    assert now.hit_rate == 48 / 120
    assert now.prompt_tokens == 60 + 12
    assert now.cache.kept == 3
    salted = generate(engine, PROMPTS[6], max_tokens=1, ignore_eos=True, cache_salt="mine")
    assert salted.usage.cached_tokens == 0


class Clock:
    """Stands still but where a forward pass moves it by a second."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Timed(ScriptedBackend):
    clock: Clock

    def forward(self, step: StepBatch) -> StepOutput:
        self.clock.now += 1
        return super().forward(step)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (engine_module, flight_module, scheduler_module, stats_module):
        monkeypatch.setattr(module, "perf_counter", made)
    return made


def timed_engine(clock: Clock, num_blocks: int, **options: Any) -> Engine:
    backend = Timed(SPEC, [9] * 128)
    backend.clock = clock
    return make_engine(backend, num_blocks=num_blocks, sharing=False, **options)


def submit(engine: Engine, prompt_tokens: int, **asked: Any) -> Flight:
    params = SamplingParams(temperature=0, ignore_eos=True, **asked)
    return engine.submit(engine.prepare([9] * prompt_tokens, params))


def test_a_request_alone_is_timed_step_by_step(clock: Clock) -> None:
    engine = timed_engine(clock, 8, step_tokens=10)
    flight = submit(engine, 25, max_tokens=6)
    clock.now += 5  # nobody drives yet
    engine.drive(lambda: flight.done)
    timing = flight.generation().timing
    assert (timing.queue_seconds, timing.prefill_seconds, timing.time_to_first_token) == (5, 3, 8)
    assert (timing.decode_seconds, timing.drawn_tokens, timing.decoded_tokens) == (5, 6, 5)
    assert timing.tokens_per_second == 1
    all_begun = timing.between_tokens
    assert (all_begun.p50, all_begun.p99, all_begun.largest) == (1, 1, 1)
    assert timing.preemptions == 0


def test_a_request_that_waits_for_room_says_how_long(clock: Clock) -> None:
    engine = timed_engine(clock, 2)
    first, second = submit(engine, 17, max_tokens=15), submit(engine, 17, max_tokens=4)
    engine.drive(lambda: first.done and second.done)
    assert first.generation().timing.queue_seconds == 0
    timing = second.generation().timing
    assert (timing.queue_seconds, timing.prefill_seconds, timing.time_to_first_token) == (15, 1, 16)


def test_a_preempted_request_says_so_and_its_gap_is_seen(clock: Clock) -> None:
    engine = timed_engine(clock, 4)
    first, second = submit(engine, 16, max_tokens=40), submit(engine, 16, max_tokens=40)
    engine.drive(lambda: first.done and second.done)
    one, two = first.generation().timing, second.generation().timing
    assert (one.preemptions, one.between_tokens.largest) == (0, 1)
    assert two.preemptions >= 1
    assert two.between_tokens.p50 == 1
    assert two.between_tokens.largest > 1
    assert two.decode_seconds == 38 + two.between_tokens.largest
    assert engine.stats().preemptions == two.preemptions


def test_samples_share_a_timing(clock: Clock) -> None:
    engine = timed_engine(clock, 16)
    flight = submit(engine, 20, n=3, max_tokens=4)
    engine.drive(lambda: flight.done)
    timing = flight.generation().timing
    assert (timing.drawn_tokens, timing.decoded_tokens) == (12, 9)
    assert timing.time_to_first_token == 1
    assert timing.decode_seconds == 4  # the others follow one step behind the first


def test_the_speed_is_that_of_the_last_ten_seconds(clock: Clock) -> None:
    engine = timed_engine(clock, 16)
    assert engine.stats().tokens_per_second == 0
    flights = [submit(engine, 4, max_tokens=30) for _ in range(3)]
    engine.drive(lambda: all(flight.done for flight in flights))
    assert engine.stats().tokens_per_second == 3
    assert engine.stats().step_seconds == engine.stats().steps
    clock.now += 60
    assert engine.stats().tokens_per_second == 0


def test_a_meter_forgets_what_is_past_its_window() -> None:
    meter = Meter()
    for second in range(5000):
        meter.step(1, 1, float(second), second + 1.0)
    assert len(meter._recent) <= 12
    assert (meter.steps, meter.prompt_tokens, meter.generated_tokens, meter.step_seconds) == (5000,) * 4


def test_failures_are_counted_as_such() -> None:
    engine = make_engine(ScriptedBackend(SPEC, [9] * 128, nan_at=6))
    flights = [
        engine.submit(engine.prepare([9], SamplingParams(max_tokens=count, temperature=0)))
        for count in (3, 30, 4, 40)
    ]
    engine.drive(lambda: all(flight.done for flight in flights))
    now = engine.stats()
    assert (now.finished, now.failed, now.cancelled) == (2, 2, 0)
    engine.cancel(flights[0])
    assert engine.stats().cancelled == 0


def test_everything_is_json() -> None:
    def check(now: EngineStats) -> None:
        made = json.loads(json.dumps(now.to_dict(), allow_nan=False))
        assert set(made) == {*EngineStats.__dataclass_fields__, "overhead"}
        assert set(made["cache"]) == {"blocks", "held", "kept", "filled", "waste"}
        assert made["cache"]["waste"] == now.cache.waste
        assert 0 <= made["overhead"] <= 1
        assert made["generated_tokens"] == now.generated_tokens

    engine = make_engine()
    check(engine.stats())
    flight = engine.submit(engine.prepare(PROMPTS[4], SamplingParams(max_tokens=9, ignore_eos=True)))
    for _ in itertools.repeat(None, 3):
        engine.step()
        check(engine.stats())
    engine.cancel(flight)
    check(engine.stats())
