"""The same request gives the same bits, however it is scheduled: a tiny model on the native kernels."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import TOKENIZER, make_engine
from tests.engine.mix import Mix, mixed_requests
from tests.engine.ways import (
    WAYS,
    alone,
    assert_empty,
    candidates_of,
    check_tight,
    check_warm,
    compute,
    joined,
)
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from unspool import _native
from unspool.backend.cpu import CpuBackend
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.model.tensor import TensorType
from unspool.sampling.plan import RuleKind
from unspool.sampling.presets import DEFAULT_ORDER
from unspool.sampling.rules.rule import NO_ENTRY

SPEC = tiny_spec(context_length=2048)
STOPS = ["e", "th", "\n", ".", "A", "\ufffd" * 5, "\ufffd" * 9]
"""Random bytes are seldom text."""
NEVER = 10**6
"""A step that no test comes to."""


@cache
def backend(threads: int, instruction_set: str) -> CpuBackend:
    """One of each kind: an engine allocates its cache anew."""
    tensors = make_tensors(random_weights(SPEC), TensorType.Q4_1)
    return CpuBackend(SPEC, tensors, threads=threads, instruction_set=instruction_set)


def new_engine(num_blocks: int, *, threads: int = 1, instruction_set: str = "auto", **options: Any) -> Engine:
    return make_engine(backend(threads, instruction_set), num_blocks, **options)


@pytest.fixture(scope="module")
def mix() -> Mix:
    return alone(mixed_requests(200, TOKENIZER.encode, STOPS), new_engine)


@pytest.fixture(scope="module")
def short(mix: Mix) -> Mix:
    """Those of them that fit in eight blocks."""
    return mix.only([i for i, asked in enumerate(mix.requests) if asked.blocks <= 8])


def test_the_mix_holds_what_the_promise_names(mix: Mix) -> None:
    asked = [each.params for each in mix.requests]
    lengths = [len(each.prompt) for each in mix.requests]
    assert (len(lengths), min(lengths), max(lengths)) == (200, 1, 1500)
    assert sum(length >= 1000 for length in lengths) >= 10
    for name, values in {
        "n": {1, 2, 3, 4, 5, 8},
        "logprobs": {0, 1, 2, 3, 4, 5},
        "priority": {-1, 0, 1, 7},
        "cache_salt": {None, "one", "other"},
        "penalty_scope": {None, "output", "all", 1, 7, 300},
        "include_stop": {True, False},
        "ignore_eos": {True, False},
        "skip_special_tokens": {True, False},
    }.items():
        assert {getattr(params, name) for params in asked} == values
    chains = [new_engine(128).prepare(each.prompt, each.params).chain for each in mix.requests]
    ruled = Counter(rule.name for chain in chains for rule in chain.named)
    assert set(ruled) == set(DEFAULT_ORDER)
    assert min(ruled.values()) >= 4, ruled
    assert {rule.kind for chain in chains for rule in chain.rules} == {*RuleKind, NO_ENTRY}
    assert sum(params.trace for params in asked) >= 3
    assert sum(params.prompt_logprobs is not None for params in asked) >= 3
    assert {params.order for params in asked if params.mirostat == 2} == {None, "llama.cpp"}
    for name, off in {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}.items():
        assert sum(getattr(params, name) not in (None, off) for params in asked) > 50
    assert sum(params.repetition_penalty not in (None, 1.0) for params in asked) > 50
    assert sum(params.temperature == 0 for params in asked) > 30
    candidates = [candidate for each in mix.alone for candidate in each]
    ends = [type(candidate.stop_reason) for candidate in candidates]
    assert all(ends.count(kind) > 20 for kind in (type(None), str, int))
    assert len({tuple(candidate.token_ids) for candidate in candidates}) > 300
    for params, each in zip(asked, mix.alone, strict=True):
        assert [candidate.index for candidate in each] == list(range(params.n))
        tokens = [token for candidate in each for token in candidate.tokens]
        assert {len(token.top_logprobs) for token in tokens} <= {params.logprobs}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_request_gets_is_what_it_gets_alone(mix: Mix, way: str) -> None:
    WAYS[way].check(mix, new_engine)


@pytest.mark.parametrize("step_tokens", [None, 16])
@pytest.mark.parametrize("sharing", [True, False])
def test_preemption_all_the_time_changes_nothing_and_never_hits_the_oldest(
    mix: Mix, step_tokens: int | None, sharing: bool
) -> None:
    for each in (mix, mix.first_come()):
        preemptions = check_tight(each, new_engine, 4, step_tokens=step_tokens, sharing=sharing)
        assert preemptions > (200 if sharing else 75)


def test_a_warm_prefix_cache_is_used_and_changes_nothing(mix: Mix) -> None:
    check_warm(mix, new_engine)


@pytest.mark.parametrize("instruction_set", _native.instruction_sets())
def test_every_instruction_set_gives_the_same_bits(mix: Mix, instruction_set: str) -> None:
    def engine_of(num_blocks: int, *, threads: int = 1, **options: Any) -> Engine:
        return new_engine(num_blocks, threads=threads, instruction_set=instruction_set, **options)

    some = mix.only(range(0, len(mix.requests), 5))
    assert alone(some.requests, engine_of).alone == some.alone
    WAYS["all of these, sharing"].check(some, engine_of)


class Cancels:
    """A watch: cancels flights after the step that is said for each."""

    def __init__(self, engine: Engine, after: list[int]) -> None:
        self.engine, self.after, self.steps = engine, after, 0

    def __call__(self, flights: list[Flight]) -> None:
        for flight, step in zip(flights, self.after, strict=False):
            if step <= self.steps:
                self.engine.cancel(flight)
        self.steps += 1


comers = st.lists(
    st.tuples(
        st.integers(0, 10**6),  # which request
        st.integers(0, 9),  # after how many steps more
        st.one_of(st.just(NEVER), st.integers(0, 90)),  # after which step it is cancelled
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=80)
@given(
    comers=comers,
    spare_blocks=st.integers(0, 12),
    step_tokens=st.one_of(st.none(), st.integers(1, 40)),
    sharing=st.booleans(),
)
def test_whatever_comes_goes_and_fits_each_gets_its_own_and_gives_all_back(
    short: Mix, comers: list[tuple[int, int, int]], spare_blocks: int, step_tokens: int | None, sharing: bool
) -> None:
    mix = short.only([which % len(short.requests) for which, _, _ in comers])
    engine = new_engine(mix.blocks + spare_blocks, step_tokens=step_tokens, sharing=sharing)
    arrivals, now = [], 0
    for _, later, _ in comers:
        now += later
        arrivals.append(now)
    cancels = Cancels(engine, [after for _, _, after in comers])
    flights = compute(engine, mix.requests, arrivals, streaming=True, watch=cancels)  # type: ignore[arg-type]
    for at, (flight, expected) in enumerate(zip(flights, mix.alone, strict=True)):
        if flight.error is None:
            mix.only([at]).check(candidates_of([flight]))
            mix.only([at]).check([joined(flight)])
        else:
            assert flight.error is flight.cancelled
            for candidate in expected:
                own = [chunk for chunk in flight.outbox if chunk.index == candidate.index]
                tokens = [token for chunk in own for token in chunk.tokens]
                assert candidate.tokens[: len(tokens)] == tokens
                assert candidate.text.startswith("".join(chunk.text for chunk in own))
    assert_empty(engine)
    mix.check(candidates_of(compute(engine, mix.requests)))
    assert_empty(engine)
