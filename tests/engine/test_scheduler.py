"""Who runs when: order, priorities, the budget of a step, and that none of it can be seen in the text."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.making import SPEC, make_engine
from tests.strategy.models import Recording, ask, candidates, finish, make_native, native, words
from tests.strategy.together import Lanes
from unspool.backend.base import StepBatch, StepOutput
from unspool.cache import BLOCK_SIZE, BlockPool, blocks_for_tokens
from unspool.combine.source import LinearCombination, Source, TrackSpec
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.engine.prefill import PREFILL_TOKENS, prefill_share
from unspool.engine.scheduler import MOST_BEGINNING, MOST_ENDED
from unspool.errors import ContextLengthError
from unspool.params import SamplingParams


def contexts(step: StepBatch) -> list[tuple[int, int]]:
    """Of each run of a step: the tokens cached before it, and how many it computes."""
    return list(zip(step.context_lens.tolist(), np.diff(step.run_starts).tolist(), strict=True))


def first_tokens(flights: list[Flight]) -> list[int]:
    """The flights' numbers in the order in which each got its first token."""
    return [flight.number for flight in sorted(flights, key=lambda f: f.first_token)]


def test_requests_start_in_the_order_in_which_they_came() -> None:
    engine = make_native(num_blocks=4)  # two run at once
    flights = [ask(engine, words(20 + i, seed=i), max_tokens=8, ignore_eos=True, seed=i) for i in range(6)]
    while any(not flight.done for flight in flights):
        engine.step()
        begun = [flight.started > 0 for flight in flights]
        assert begun == sorted(begun, reverse=True)
    assert sorted(flights, key=lambda f: f.started) == flights
    assert first_tokens(flights) == sorted(first_tokens(flights))
    finish(engine)


def test_a_higher_priority_starts_first_whatever_came_first() -> None:
    engine = make_native(num_blocks=2)  # one runs at once
    ranks = [0, 5, -3, 5, 2]
    flights = [
        ask(engine, words(20, seed=i), max_tokens=6, ignore_eos=True, priority=rank)
        for i, rank in enumerate(ranks)
    ]
    finish(engine, *flights)
    order = sorted(range(len(ranks)), key=lambda i: (-ranks[i], i))
    assert first_tokens(flights) == [flights[i].number for i in order]
    assert engine.stats().preemptions == 0  # they came together: nobody had to give way


@pytest.mark.parametrize(("later", "gives_way"), [(-1, False), (0, False), (1, True)])
def test_a_place_is_taken_from_a_lower_priority_and_from_no_equal_one(later: int, gives_way: bool) -> None:
    engine = make_native(num_blocks=3)
    asked: Any = {"max_tokens": 12, "ignore_eos": True, "seed": 1}
    first = ask(engine, words(30), **asked)
    engine.drive(lambda: first.first_token > 0)
    second = ask(engine, words(30, seed=1), **asked, priority=later)
    finish(engine, first, second)
    assert (first.preemptions > 0) == gives_way
    assert second.preemptions == 0
    assert (second.last_token < first.last_token) == gives_way
    assert first.generation().candidates == candidates(make_native(), words(30), **asked)
    assert second.generation().candidates == candidates(make_native(), words(30, seed=1), **asked)


def test_a_higher_priority_does_not_wait_for_a_lower_ones_long_prompt() -> None:
    engine = make_native(step_tokens=8)
    long = ask(engine, words(100), max_tokens=4)
    engine.step()
    short = ask(engine, words(6, seed=1), max_tokens=4, priority=1)
    engine.drive(lambda: short.first_token > 0)
    assert long.first_token == 0
    assert long.branches[0].tracks[0].table.length < 40
    finish(engine, long, short)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("step_tokens", [7, 8, 12, 512])
def test_every_running_branch_gets_its_token_in_every_step_of_anothers_long_prompt(
    step_tokens: int, streaming: bool
) -> None:
    """Six branches go on while a prompt is computed; where one is streamed, each step stays a short one."""
    engine = make_engine(Recording(), step_tokens=step_tokens)
    asked: Any = {"max_tokens": 110, "ignore_eos": True}
    recording = engine.main.backend
    assert isinstance(recording, Recording)
    flights = [
        ask(engine, words(5 + i, seed=i), seed=i, n=1 + i % 2, streaming=streaming and i == 2, **asked)
        for i in range(4)
    ]
    branches = 6
    engine.drive(lambda: sum(len(b.token_ids) > 1 for f in flights for b in f.branches) == branches)
    long = ask(engine, words(60, seed=9), max_tokens=4, seed=1)
    before = len(recording.steps)
    engine.drive(lambda: long.first_token > 0)
    steps = recording.steps[before:]
    assert sum(len(step.tokens) - branches for step in steps) == 60
    for step in steps:
        runs = contexts(step)
        assert sum(count == 1 and context > 4 for context, count in runs) >= branches
        assert len(step.tokens) - branches <= (prefill_share(branches) if streaming else PREFILL_TOKENS)
        assert len(step.tokens) <= step_tokens
    for flight in [*flights, long]:
        engine.cancel(flight)
    finish(engine)


class Watching(Recording):
    """Also keeps how many blocks were free when the last step was computed."""

    pool: BlockPool
    least_free = 0

    def forward(self, step: StepBatch) -> StepOutput:
        self.least_free = self.pool.num_free
        return super().forward(step)


@given(
    step_tokens=st.integers(1, 40),
    num_blocks=st.integers(8, 24),
    data=st.lists(
        st.tuples(st.integers(1, 70), st.integers(1, 30), st.integers(1, 4), st.integers(-1, 1)),
        min_size=1,
        max_size=7,
    ),
    arrivals=st.lists(st.integers(0, 6), min_size=7, max_size=7),
)
@example(step_tokens=4, num_blocks=8, data=[(1, 1, 3, 0), (5, 1, 1, 1), (1, 1, 1, 0)], arrivals=[0] * 7)
@settings(max_examples=40)
def test_no_step_is_larger_than_allowed_and_nobody_who_runs_goes_without(
    step_tokens: int,
    num_blocks: int,
    data: list[tuple[int, int, int, int]],
    arrivals: list[int],
) -> None:
    recording = Watching()
    engine = make_engine(recording, num_blocks, step_tokens=step_tokens)
    recording.pool = engine.main.pool
    flights = []
    for (prompt, new, n, priority), wait in zip(data, arrivals, strict=False):
        flights.append(
            ask(engine, words(prompt, seed=prompt), max_tokens=new, n=n, priority=priority, ignore_eos=True)
        )
        for _ in range(wait):
            check_step(engine, recording)
    while engine.busy:
        check_step(engine, recording)
    finish(engine, *flights)
    for flight, (_, new, n, _) in zip(flights, data, strict=False):
        assert [len(c.token_ids) for c in flight.generation().candidates] == [new] * n


def check_step(engine: Engine, recording: Watching) -> None:
    """Take a step: what ran and still runs has its token, unless it was taken from."""
    running = engine.scheduler.running
    decoding = [(b, len(b.token_ids)) for b in running if b.pending() == 1]
    first, preemptions = (running[0] if running else None), engine.scheduler.preemptions
    if not engine.step():
        return
    step = recording.steps[-1]
    assert len(step.tokens) <= engine.step_tokens
    decoded = sum(count == 1 for _, count in contexts(step))
    assert len(step.tokens) - decoded <= PREFILL_TOKENS
    for branch, tokens in decoding:
        if len(branch.token_ids) != tokens + 1:  # there was no block for it, and none later to take one from
            began_again = branch.pending() > 1
            assert not branch.running or began_again or branch is engine.scheduler.running[-1]
            assert engine.scheduler.preemptions > preemptions or recording.least_free == 0
    if first is not None and first.growing:
        assert first.running or engine.scheduler.running[0].order < first.order


def test_the_first_running_branch_is_never_preempted() -> None:
    engine = make_native(num_blocks=8)
    asked: Any = {"max_tokens": 80, "ignore_eos": True}
    flights = [ask(engine, words(10 + i, seed=i), seed=i, **asked) for i in range(6)]
    first, began = flights[0], 0
    while any(not flight.done for flight in flights):
        engine.step()
        if not first.done:
            assert first.branches[0].running
            assert len(first.branches[0].token_ids) > began
            began = len(first.branches[0].token_ids)
    finish(engine)
    assert first.preemptions == 0
    assert engine.stats().preemptions > 3
    for i, flight in enumerate(flights):
        assert flight.generation().candidates == candidates(
            make_native(), words(10 + i, seed=i), seed=i, **asked
        )


def test_what_was_preempted_starts_again_before_what_came_later() -> None:
    engine = make_native(num_blocks=7)
    asked: Any = {"max_tokens": 60, "ignore_eos": True}
    flights = [ask(engine, words(20, seed=i), seed=i, **asked) for i in range(5)]
    while any(not flight.done for flight in flights):
        engine.step()
        waiting = [b.order for b in engine.scheduler.waiting]
        begun = [b.order for b in engine.scheduler.running]
        assert not waiting or not begun or max(begun) < min(waiting)
    assert engine.stats().preemptions > 0
    assert first_tokens(flights) == [1, 2, 3, 4, 5]
    finish(engine)


@pytest.mark.parametrize("room", [32, 48, 64])
def test_what_can_never_fit_is_refused_at_once_and_told_how_much_does(room: int) -> None:
    engine = make_native(num_blocks=room // BLOCK_SIZE)
    for prompt in (room, room + 1, 100):
        with pytest.raises(ContextLengthError, match=rf"{prompt} tokens; the cache of {room} .* {room - 1}:"):
            engine.prepare(words(prompt), SamplingParams())
    with pytest.raises(ContextLengthError, match=rf"max_tokens=20 .* at most {10} do"):
        engine.prepare(words(room - 10), SamplingParams(max_tokens=20))
    made = candidates(engine, words(room - 10), max_tokens=10, ignore_eos=True)
    assert len(made[0].token_ids) == 10


def test_one_token_a_step_gives_the_same() -> None:
    asked: Any = {"max_tokens": 9, "seed": 3, "ignore_eos": True}
    engine = make_engine(Recording(), step_tokens=1)
    flights = [ask(engine, words(11, seed=i), **asked, n=2) for i in range(3)]
    finish(engine, *flights)
    assert isinstance(engine.main.backend, Recording)
    assert all(len(step.tokens) == 1 for step in engine.main.backend.steps)
    for i, flight in enumerate(flights):
        assert flight.generation().candidates == candidates(make_native(), words(11, seed=i), **asked, n=2)


@pytest.mark.parametrize("n", [2, 17, 64])
@pytest.mark.parametrize("prompt", [31, 32, 40])
def test_any_number_of_samples_runs_in_the_blocks_of_one_sequence(n: int, prompt: int) -> None:
    asked: Any = {"max_tokens": 20, "seed": 3, "n": n, "ignore_eos": True}
    tight = make_native(num_blocks=blocks_for_tokens(prompt + 20))
    assert candidates(tight, words(prompt), **asked) == candidates(make_native(200), words(prompt), **asked)


MIXED: list[tuple[int, dict[str, Any]]] = [
    (1, {"max_tokens": 30, "seed": 1}),
    (16, {"max_tokens": 20, "temperature": 0}),
    (17, {"max_tokens": 25, "seed": 2, "n": 3, "top_p": 0.9}),
    (50, {"max_tokens": 20, "seed": 3, "repetition_penalty": 1.4, "penalty_scope": "all"}),
    (33, {"max_tokens": 30, "seed": 4, "stop": ["e", "t"], "logprobs": 2}),
    (90, {"max_tokens": 12, "seed": 5, "min_p": 0.05, "priority": 1}),
    (5, {"max_tokens": 60, "seed": 6, "ignore_eos": True, "priority": -1}),
]


@given(
    order=st.permutations(range(len(MIXED))),
    num_blocks=st.integers(7, 16),
    step_tokens=st.integers(1, 64),
    waits=st.lists(st.integers(0, 5), min_size=len(MIXED), max_size=len(MIXED)),
    sharing=st.booleans(),
)
@settings(max_examples=30)
def test_no_text_tells_of_the_company_the_order_the_steps_or_the_preemptions(
    order: list[int], num_blocks: int, step_tokens: int, waits: list[int], sharing: bool
) -> None:
    engine = make_engine(native(), num_blocks, step_tokens=step_tokens, sharing=sharing)
    flights = {}
    for i, wait in zip(order, waits, strict=True):
        length, asked = MIXED[i]
        flights[i] = ask(engine, words(length), **asked)
        for _ in range(wait):
            engine.step()
    finish(engine, *flights.values())
    for i, (length, asked) in enumerate(MIXED):
        alone = make_engine(native(), blocks_for_tokens(SPEC.context_length))
        assert flights[i].generation().candidates == candidates(alone, words(length), **asked)


def test_a_long_prompt_gets_on_however_many_short_ones_keep_coming() -> None:
    engine = make_native()
    engine.scheduler._context_weight = 0.2  # as if the context were a long one
    stream = ask(engine, words(3), max_tokens=120, ignore_eos=True, streaming=True)
    engine.drive(lambda: stream.generated > 1)
    long = ask(engine, words(60, seed=1), max_tokens=1)
    short = ask(engine, words(6, seed=2), max_tokens=1)
    served, steps = 0, 0
    while not long.done:
        engine.step()
        steps += 1
        if short.done:
            served += 1
            short = ask(engine, words(6, seed=2 + served), max_tokens=1)
    assert steps <= 60
    assert served > 5
    assert not stream.done
    engine.cancel(stream)
    finish(engine)


def test_requests_that_fit_alone_fit_in_any_company() -> None:
    engine = make_engine(native(), 4, step_tokens=3, sharing=False)
    flights = []
    company = [(24, 19, 1, 1), (2, 39, 8, 1), (37, 27, 8, 0), (14, 37, 3, 1)]
    asked: Any = {"ignore_eos": True, "seed": 1}
    for i, (prompt, new, steps, priority) in enumerate(company):
        own: Any = {"max_tokens": new, "priority": priority, **asked}
        flights.append(ask(engine, words(prompt, seed=i), streaming=True, **own))
        for _ in range(steps):
            engine.step()
    finish(engine, *flights)
    for i, (flight, (prompt, new, _, _)) in enumerate(zip(flights, company, strict=True)):
        alone = candidates(make_native(), words(prompt, seed=i), max_tokens=new, **asked)
        assert flight.generation().candidates == alone


@pytest.mark.parametrize(
    ("num_blocks", "prompt", "width", "length"), [(4, 17, 2, 8), (9, 16, 3, 20), (9, 31, 4, 8)]
)
@pytest.mark.parametrize("count", [2, 3])
def test_requests_whose_branches_grow_together_make_way_for_the_first(
    num_blocks: int, prompt: int, width: int, length: int, count: int
) -> None:
    asked: Any = {"max_tokens": length, "ignore_eos": True, "seed": 1}

    def lanes(engine: Engine, seed: int) -> Flight:
        return ask(engine, words(prompt, seed=seed), strategy=Lanes(width, length), **asked)

    engine = make_native(num_blocks)
    flights = [lanes(engine, seed) for seed in range(count)]
    finish(engine, *flights)
    for seed, flight in enumerate(flights):
        by_itself = make_native(num_blocks)
        alone = lanes(by_itself, seed)
        finish(by_itself, alone)
        assert flight.generation().candidates == alone.generation().candidates
    assert [flight.number for flight in flights] == first_tokens(flights)


def test_branches_that_do_not_fit_together_end_with_an_error_and_harm_nobody() -> None:
    engine = make_native(3)
    asked: Any = {"max_tokens": 30, "ignore_eos": True, "seed": 1}
    wide = ask(engine, words(5), strategy=Lanes(4, 30), **asked)
    plain = ask(engine, words(6, seed=1), **asked)
    finish(engine, wide, plain)
    assert isinstance(wide.error, ContextLengthError)
    assert plain.generation().candidates == candidates(make_native(), words(6, seed=1), **asked)


@pytest.mark.parametrize("count", [1, MOST_BEGINNING - 1, MOST_BEGINNING, 2 * MOST_BEGINNING])
def test_an_urgent_prompt_waits_for_no_number_of_lower_ones(count: int) -> None:
    engine = make_native(200, step_tokens=8)
    low = [ask(engine, words(100, seed=i), max_tokens=2, ignore_eos=True) for i in range(count)]
    for _ in range(3):
        engine.step()
    urgent = ask(engine, words(3, seed=99), max_tokens=4, ignore_eos=True, priority=1)
    for _ in range(4):
        engine.step()
    assert urgent.done
    assert not any(flight.done for flight in low)
    finish(engine, *low)


def test_an_urgent_request_takes_the_place_of_a_lower_one_in_a_full_step() -> None:
    engine = make_native(step_tokens=4)
    asked: Any = {"max_tokens": 40, "ignore_eos": True, "seed": 1}
    low = [ask(engine, words(2, seed=i), **asked) for i in range(4)]
    engine.drive(lambda: all(flight.generated for flight in low))
    equal = ask(engine, words(2, seed=8), **asked)
    urgent = ask(engine, words(2, seed=9), max_tokens=2, ignore_eos=True, priority=1)
    for _ in range(3):
        engine.step()
    assert urgent.done
    assert equal.started == 0
    assert [flight.preemptions for flight in low] == [0, 0, 0, 1]
    finish(engine, *low, equal)
    for i, flight in enumerate(low):
        assert flight.generation().candidates == candidates(make_native(), words(2, seed=i), **asked)


def test_nobody_gives_up_a_place_for_one_that_cannot_start_all_the_same() -> None:
    engine = make_native(14)
    asked: Any = {"ignore_eos": True, "seed": 1}
    top = ask(engine, words(100), max_tokens=20, priority=2, **asked)  # it holds 7 blocks, and 8 at last
    low = [ask(engine, words(20, seed=i), max_tokens=12, **asked) for i in range(1, 4)]
    engine.drive(lambda: all(flight.generated for flight in low))
    urgent = ask(engine, words(113, seed=9), max_tokens=5, priority=1, **asked)
    engine.drive(lambda: all(flight.done for flight in low))
    assert not top.done
    assert [flight.preemptions for flight in low] == [0, 0, 0]
    assert urgent.started == 0
    finish(engine, top, urgent)


def test_what_lower_ones_share_with_those_that_stay_is_not_counted_as_room() -> None:
    """The samples of one prompt hold its blocks together: that one gives way frees few of them."""
    engine = make_native(8)
    asked: Any = {"ignore_eos": True, "seed": 1}
    prompt = words(80)
    top = ask(engine, prompt, max_tokens=10, priority=2, **asked)
    engine.drive(lambda: top.generated > 0)
    low = ask(engine, prompt, max_tokens=12, **asked)
    engine.drive(lambda: low.generated > 0)
    urgent = ask(engine, words(40, seed=9), max_tokens=5, priority=1, **asked)
    engine.drive(lambda: top.done)
    assert low.preemptions == 0
    finish(engine, low, urgent)
    assert low.generation().candidates == candidates(make_native(), prompt, max_tokens=12, **asked)


def test_cancelled_requests_are_let_go_although_they_waited_behind_one_that_cannot_start() -> None:
    engine = make_native(8)
    big = ask(engine, words(60), max_tokens=60, ignore_eos=True)
    engine.drive(lambda: big.generated > 0)
    blocked = ask(engine, words(100, seed=1), max_tokens=20, ignore_eos=True)
    flights = []
    for i in range(20 * MOST_ENDED):
        flight = ask(engine, words(20, seed=2), max_tokens=50, n=3)
        if i % 10 == 0:
            engine.step()
        engine.cancel(flight)
        flights.append(weakref.ref(flight))
        del flight
    assert not big.done
    gc.collect()
    assert sum(flight() is not None for flight in flights) <= MOST_ENDED + 2
    engine.cancel(big)
    finish(engine, blocked)
    assert blocked.error is None


def test_what_cannot_be_planned_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_native()
    asked: Any = {"max_tokens": 10, "ignore_eos": True, "seed": 1, "n": 2}
    good = [ask(engine, words(20, seed=i), **asked) for i in range(2)]
    engine.drive(lambda: good[0].generated > 2)
    bad = ask(engine, words(30, seed=5), **asked)
    engine.drive(lambda: bad.generated > 2)

    def fail(_: int) -> int:
        raise ZeroDivisionError

    broken = bad.branches[1].tracks[0]
    original = type(broken).pending
    monkeypatch.setattr(type(broken), "pending", lambda t, n: fail(n) if t is broken else original(t, n))
    finish(engine, *good, bad)
    assert isinstance(bad.error, ZeroDivisionError)
    for i, flight in enumerate(good):
        assert flight.generation().candidates == candidates(make_native(), words(20, seed=i), **asked)


def test_one_that_takes_a_lower_ones_place_goes_on_in_the_same_step() -> None:
    """Both its last tokens, of two tracks, go together: they need the places that the other gave up."""
    engine = make_engine(native(), 12, step_tokens=3)

    def two_tracks() -> Source:
        return Source((TrackSpec([5]), TrackSpec([5])), LinearCombination((1.5, -0.5)))

    lower = ask(engine, [5], source=two_tracks(), max_tokens=16, ignore_eos=True, seed=1)
    for _ in range(3):
        engine.step()
    urgent = ask(engine, [5], source=two_tracks(), max_tokens=12, ignore_eos=True, seed=1, priority=2)
    while engine.busy:
        engine.step()
    assert (lower.error, urgent.error) == (None, None)
