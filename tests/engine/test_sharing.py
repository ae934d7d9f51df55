"""What requests have in common is computed once, and nothing of that can be seen in what they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import make_engine
from tests.strategy.models import Recording, ask, candidates, finish, make_native, native, words
from unspool.backend.base import StepBatch, StepOutput
from unspool.cache import BLOCK_SIZE, HashChain, blocks_for_tokens
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.errors import BackendError

SYSTEM = words(50, seed=100)
SHARED = len(SYSTEM) // BLOCK_SIZE * BLOCK_SIZE


def recorded(num_blocks: int = 64, **options: Any) -> tuple[Engine, Recording]:
    """An engine, and the record of what it computes."""
    recording = Recording()
    return make_engine(recording, num_blocks, **options), recording


def decoded(flights: list[Flight]) -> int:
    """Tokens that were computed to go on: all that were drawn but each branch's last."""
    return sum(len(branch.token_ids) - 1 for flight in flights for branch in flight.branches)


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("prompt", [31, 32, 33, 47])
def test_samples_hold_the_prompts_blocks_once_and_copy_only_what_they_write(
    prompt: int, sharing: bool
) -> None:
    engine, recording = recorded(sharing=sharing)
    flight = ask(engine, words(prompt), n=5, max_tokens=20, ignore_eos=True, seed=1)
    engine.drive(lambda: sum(len(b.token_ids) >= 2 for b in flight.branches) == 5)
    full, rest = (prompt - 1) // BLOCK_SIZE, (prompt - 1) % BLOCK_SIZE
    tables = [branch.tracks[0].table for branch in flight.branches]
    assert len({tuple(table.blocks[:full].tolist()) for table in tables}) == 1
    own = [block for table in tables for block in table.blocks[full:].tolist()]
    assert len(own) == len(set(own))
    assert engine.stats().cache.held == full + len(own)
    finish(engine, flight)
    # Of five that share a part of a block, the last to write into it need not copy. The first has written
    # a token or two by then.
    assert 4 * rest <= recording.copied <= 4 * (rest + 2)
    assert recording.computed == prompt + decoded([flight]) + 4  # each other computes the row it starts from


@pytest.mark.parametrize("step_tokens", [16, 40, 512])
@pytest.mark.parametrize("num_blocks", [14, 64])
def test_a_common_beginning_is_computed_once(step_tokens: int, num_blocks: int) -> None:
    engine, recording = recorded(num_blocks, step_tokens=step_tokens)
    endings = [words(5 + 3 * i, seed=i) for i in range(6)]
    flights = [ask(engine, [*SYSTEM, *ending], max_tokens=4, ignore_eos=True, seed=1) for ending in endings]
    finish(engine, *flights)
    own = sum(len(SYSTEM) - SHARED + len(ending) for ending in endings)
    assert engine.stats().preemptions == 0
    assert recording.computed == SHARED + own + decoded(flights)
    assert [flight.generation().usage.cached_tokens for flight in flights] == [0] + [SHARED] * 5
    hits = 5 * SHARED / sum(len(SYSTEM) + len(ending) for ending in endings)
    assert engine.stats().hit_rate == pytest.approx(hits)


def test_the_same_prompt_many_times_is_computed_once_but_for_its_last_tokens() -> None:
    engine, recording = recorded()
    prompt = words(64)
    flights = [ask(engine, prompt, max_tokens=2, ignore_eos=True, seed=i) for i in range(5)]
    finish(engine, *flights)
    assert recording.computed == 64 + 4 * BLOCK_SIZE + 5  # the row after the last token is wanted
    assert [flight.generation().usage.cached_tokens for flight in flights] == [0, 48, 48, 48, 48]


def test_without_a_prefix_cache_everything_is_computed() -> None:
    engine, recording = recorded(sharing=False)
    flights = [ask(engine, SYSTEM, max_tokens=5, ignore_eos=True, seed=i) for i in range(3)]
    finish(engine, *flights)
    again = ask(engine, SYSTEM, max_tokens=5, ignore_eos=True, seed=0)
    finish(engine, again)
    assert recording.computed == 4 * len(SYSTEM) + decoded([*flights, again])
    assert {flight.generation().usage.cached_tokens for flight in [*flights, again]} == {0}
    assert engine.main.pool.num_kept == 0
    assert again.generation().candidates == flights[0].generation().candidates


def test_a_conversation_goes_on_from_what_is_cached() -> None:
    engine, recording = recorded()
    talk = list(SYSTEM)
    for turn in range(3):
        talk += words(7, seed=turn)
        before, cached = recording.computed, 0 if turn == 0 else (len(talk) - 8) // BLOCK_SIZE * BLOCK_SIZE
        flight = ask(engine, talk, max_tokens=18, ignore_eos=True, seed=turn)
        finish(engine, flight)
        made = flight.generation()
        assert made.usage.cached_tokens == cached
        assert recording.computed - before == len(talk) - cached + 17
        assert made.candidates == candidates(
            make_native(sharing=False), talk, max_tokens=18, ignore_eos=True, seed=turn
        )
        talk += made.token_ids


def test_salts_share_nothing_with_each_other() -> None:
    engine, recording = recorded()
    for salt in (None, "", "a", "A", "b"):
        for cached in (0, SHARED):
            before = recording.computed
            flight = ask(engine, SYSTEM, max_tokens=1, cache_salt=salt, seed=1)
            finish(engine, flight)
            assert flight.generation().usage.cached_tokens == cached
            assert recording.computed - before == len(SYSTEM) - cached
    together = [ask(engine, words(40), max_tokens=1, cache_salt=salt) for salt in ("x", "y", None)]
    finish(engine, *together)
    assert [flight.generation().usage.cached_tokens for flight in together] == [0, 0, 0]


def test_what_was_preempted_is_found_again() -> None:
    engine, recording = recorded(num_blocks=8)
    asked: Any = {"max_tokens": 60, "ignore_eos": True}
    flights = [ask(engine, words(32, seed=i), seed=i, **asked) for i in range(2)]
    engine.drive(lambda: flights[1].preemptions > 0)
    kept = len(flights[1].branches[0].token_ids)
    assert kept > 20
    urgent = ask(engine, words(20, seed=7), seed=7, priority=1, max_tokens=2)
    finish(engine, *flights, urgent)
    computed = sum(len(words(32)) for _ in flights) + 20 + decoded([*flights, urgent])
    recomputed = recording.computed - computed
    assert recomputed > 0
    fully = 32 + kept  # what it had computed when its place was first taken
    assert recomputed < flights[1].preemptions * fully
    for i, flight in enumerate(flights):
        alone = make_native(sharing=False)
        assert flight.generation().candidates == candidates(alone, words(32, seed=i), seed=i, **asked)


def test_the_beginning_that_was_used_least_recently_goes_first() -> None:
    engine, _ = recorded(num_blocks=9)
    prompts = {name: words(33, seed=seed) for seed, name in enumerate("abcd")}  # two full blocks each

    def cached(name: str) -> int:
        flight = ask(engine, prompts[name], max_tokens=1)
        finish(engine, flight)
        return flight.generation().usage.cached_tokens

    assert [cached(name) for name in "abc"] == [0, 0, 0]
    assert [cached(name) for name in "abc"] == [32, 32, 32]
    assert cached("a") == 32  # b is the oldest now
    assert cached("d") == 0  # of nine blocks six are kept: d's three are free
    finish(engine, ask(engine, words(17, seed=9), max_tokens=1))  # takes the one free block and b's last
    table = [engine.main.prefixes.match(digests) for digests in map(digests_of, prompts.values())]
    assert table == [2, 1, 2, 2]


def digests_of(prompt: list[int]) -> list[bytes]:
    """The digests of a prompt's full blocks."""
    chain = HashChain(None)
    chain.extend(prompt)
    return chain.hashes


@given(
    cuts=st.lists(st.integers(1, 90), min_size=2, max_size=6),
    num_blocks=st.integers(7, 20),
    step_tokens=st.integers(3, 64),
    n=st.integers(1, 3),
)
@settings(max_examples=40)
def test_a_warm_cache_gives_what_a_cold_one_does(
    cuts: list[int], num_blocks: int, step_tokens: int, n: int
) -> None:
    text = words(90, seed=1)
    asked: Any = {"max_tokens": 12, "n": n, "seed": 2, "ignore_eos": True, "logprobs": 1}
    engine = make_engine(native(), num_blocks, step_tokens=step_tokens)
    for round_ in range(2):
        flights = [ask(engine, text[:cut], **asked) for cut in cuts]
        finish(engine, *flights)
        if round_ == 1 and num_blocks > 18:
            assert any(flight.cached_tokens for flight in flights) or max(cuts) <= BLOCK_SIZE
        for cut, flight in zip(cuts, flights, strict=True):
            cold = make_engine(native(), 64, sharing=False)
            assert flight.generation().candidates == candidates(cold, text[:cut], **asked)


@pytest.mark.parametrize("end", ["cancelled", "failed"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_who_waits_for_anothers_computing_goes_on_where_it_ends(end: str, after: int) -> None:
    class Failing(Recording):
        """Fails wherever the first request's last token is."""

        broken = False

        def forward(self, step: StepBatch) -> StepOutput:
            if self.broken and 3 in np.asarray(step.tokens):
                raise BackendError("no")
            return super().forward(step)

    backend = Failing()
    engine = make_engine(backend, step_tokens=16)
    prompt = [t for t in words(60, seed=4) if t != 3]
    first = ask(engine, [*prompt, 3, *[3] * 16], max_tokens=4)
    others = [ask(engine, [*prompt, 9 + i], max_tokens=4, seed=1, ignore_eos=True) for i in range(3)]
    for _ in range(after):
        engine.step()
    assert any(not branch.running for flight in others for branch in flight.branches)
    if end == "cancelled":
        engine.cancel(first)
    backend.broken = True
    finish(engine, first, *others)
    assert first.error is not None
    for i, flight in enumerate(others):
        alone = candidates(make_native(), [*prompt, 9 + i], max_tokens=4, seed=1, ignore_eos=True)
        assert flight.generation().candidates == alone


@given(st.data())
@settings(max_examples=40)
def test_waiting_for_each_other_never_ends_in_a_deadlock(data: st.DataObject) -> None:
    engine = make_engine(native(), data.draw(st.integers(6, 12)), step_tokens=data.draw(st.integers(2, 24)))
    text = words(80, seed=1)
    live: list[Flight] = []
    for _ in range(data.draw(st.integers(4, 16))):
        act = data.draw(st.sampled_from(["ask", "ask", "step", "step", "cancel"]))
        if act == "ask":
            cut, n = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 3))
            priority = data.draw(st.integers(0, 1))
            live.append(ask(engine, text[:cut], max_tokens=6, n=n, priority=priority, ignore_eos=True))
        elif act == "step":
            engine.step()
        elif live:
            engine.cancel(live[data.draw(st.integers(0, len(live) - 1))])
    finish(engine, *live)
    for flight in live:
        assert flight.cancelled is not None or len(flight.generation().candidates[0].token_ids) == 6


def test_blocks_that_samples_need_are_counted() -> None:
    engine, _ = recorded(num_blocks=40)
    prompt, new, n = 100, 20, 6
    flight = ask(engine, words(prompt), n=n, max_tokens=new, ignore_eos=True)
    most = 0
    while not flight.done:
        engine.step()
        most = max(most, engine.stats().cache.held)
    own = blocks_for_tokens(prompt + new) - prompt // BLOCK_SIZE
    assert most <= prompt // BLOCK_SIZE + n * own
