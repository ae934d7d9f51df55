"""The promise of ``test_invariance`` on the real model: a share of it always, the whole of it marked slow."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.mix import Mix, mixed_requests
from tests.engine.ways import WAYS, NewEngine, Way, alone, check_tight, check_warm
from unspool import _native
from unspool.backend.cpu import CpuBackend
from unspool.engine.engine import Engine
from unspool.llm import LLM
from unspool.model.loader import LoadedModel, load

pytestmark = pytest.mark.model

STOPS = [" the", ".", "\n", " and", ",", "er", " of"]


@pytest.fixture(scope="module")
def loaded(default_model_path: Path) -> LoadedModel:
    return load(default_model_path)


@pytest.fixture(scope="module")
def new_engine(loaded: LoadedModel) -> NewEngine:
    @cache
    def backend(threads: int, instruction_set: str) -> CpuBackend:
        return CpuBackend(loaded.spec, loaded.tensors, threads=threads, instruction_set=instruction_set)

    def make(
        num_blocks: int,
        *,
        threads: int = 2,
        step_tokens: int | None = None,
        sharing: bool = True,
        instruction_set: str = "auto",
    ) -> Engine:
        return LLM.with_backend(
            loaded,
            backend(threads, instruction_set),  # an engine allocates its cache anew
            cache_tokens=16 * num_blocks,
            step_tokens=step_tokens,
            prefix_cache=sharing,
        ).engine

    return make


@pytest.fixture(scope="module")
def some(loaded: LoadedModel, new_engine: NewEngine) -> Mix:
    requests = mixed_requests(20, loaded.tokenizer.encode, STOPS, longest=600, seed=1)
    return alone(requests, new_engine)


@pytest.fixture(scope="module")
def mix(loaded: LoadedModel, new_engine: NewEngine) -> Mix:
    return alone(mixed_requests(200, loaded.tokenizer.encode, STOPS), new_engine)


@pytest.mark.parametrize(
    "way",
    [
        Way(threads=1),
        Way(shuffled=True, late=True, step_tokens=16, threads=2, streaming=True),
        Way(shuffled=True, late=True, rising=True, threads=2, sharing=False, tight=True),
    ],
    ids=["together", "late, 16 tokens a step", "small cache, not sharing"],
)
def test_twenty_requests_get_what_each_gets_alone(some: Mix, new_engine: NewEngine, way: Way) -> None:
    way.check(some, new_engine)


def test_twenty_requests_that_are_preempted_get_what_each_gets_alone(
    some: Mix, new_engine: NewEngine
) -> None:
    assert check_tight(some, new_engine, 2) > 10


def test_twenty_requests_get_the_same_from_a_warm_prefix_cache(some: Mix, new_engine: NewEngine) -> None:
    check_warm(some, new_engine)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_two_hundred_requests_get_what_each_gets_alone(mix: Mix, new_engine: NewEngine, way: str) -> None:
    WAYS[way].check(mix, new_engine)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step_tokens", [None, 16])
@pytest.mark.parametrize("sharing", [True, False])
def test_two_hundred_requests_that_are_preempted_get_what_each_gets_alone(
    mix: Mix, new_engine: NewEngine, step_tokens: int | None, sharing: bool
) -> None:
    for each in (mix, mix.first_come()):
        preemptions = check_tight(each, new_engine, 4, step_tokens=step_tokens, sharing=sharing)
        assert preemptions > 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_requests_get_the_same_from_a_warm_prefix_cache(mix: Mix, new_engine: NewEngine) -> None:
    check_warm(mix, new_engine)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("instruction_set", _native.instruction_sets())
def test_every_instruction_set_gives_the_same_bits(
    mix: Mix, new_engine: NewEngine, instruction_set: str
) -> None:
    def engine_of(num_blocks: int, **options: Any) -> Engine:
        return new_engine(num_blocks, **options, instruction_set=instruction_set)

    WAYS["all together"].check(mix.only(range(0, len(mix.requests), 5)), engine_of)
