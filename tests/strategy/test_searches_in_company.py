"""Every search, with every setting, in any company: what it gives is what it gives alone, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.engine.making import TOKENIZER
from tests.strategy.models import finish, make_native, words
from unspool.combine.source import LinearCombination, Source, TrackSpec
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.errors import ParameterError
from unspool.params import SamplingParams
from unspool.results import Candidate
from unspool.strategy import Beam, BeamSample, Contrastive, DiverseBeam, Exact, StochasticBeam

PROMPT = words(40, seed=9)
LETTERS = [TOKENIZER.ids[TOKENIZER.characters[byte]] for byte in b"abcdefghijklmnopqrstuvwxyz"]
EXACT: dict[str, Any] = {"strategy": Exact(), "max_tokens": 3, "n": 2}
SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {"strategy": Beam(4), "n": 3},
    "patient beam": {"strategy": Beam(3, 0.5, "never"), "n": 2},
    "beam of Transformers": {"strategy": Beam(3), "order": "transformers"},
    "diverse beam": {"strategy": DiverseBeam(4, 2, 0.7), "n": 4},
    "drawn beam": {"strategy": BeamSample(4), "n": 4},
    "stochastic beam": {"strategy": StochasticBeam(4)},
    "forced words": {"strategy": Beam(4, force_words=[LETTERS[3:5], [LETTERS[7:8], LETTERS[20:22]]])},
    "contrastive": {"strategy": Contrastive(4, 0.7)},
    "exact": EXACT,
}
COMMON: dict[str, Any] = {"max_tokens": 14, "allowed_token_ids": [2, *LETTERS], "seed": 5, "logprobs": 2}


def dim_repeats(token_ids: Sequence[int], row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A caller's own rule: what was said is less likely."""
    row[np.array(token_ids)] -= np.float32(0.9)
    return row


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rules": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_tokens": 3, "top_k": 9},
    "a processor": {"logits_processors": [dim_repeats]},
    "a trace": {"trace": True},
    "figures of the prompt": {"prompt_logprobs": 1},
    "a stop string": {"stop": ["q", "e", "xy"]},
    "a source": {"guided": True},
    "a source, a processor and a stop string": {
        "guided": True,
        "logits_processors": [dim_repeats],
        "stop": ["k"],
        "include_stop": True,
    },
}


def submit(engine: Engine, asked: dict[str, Any], *, streaming: bool = False) -> Flight:
    source, own = None, {**COMMON, **asked}
    if own.pop("guided", False):
        tracks = (TrackSpec(PROMPT), TrackSpec(words(6, seed=2)))
        source = Source(tracks, LinearCombination((1.6, -0.6)))
    request = engine.prepare(PROMPT, SamplingParams(**own), source=source)
    return engine.submit(request, streaming=streaming)


def sampled(engine: Engine, at: int, priority: int = 0) -> Flight:
    """One of many sampled requests, each of a kind of its own."""
    prompt = PROMPT[: 16 * (at % 3)] + words(3 + 2 * at, seed=at)
    own: dict[str, Any] = {"seed": at, "max_tokens": 8 + at, "n": 1 + at % 2, "logprobs": at % 3}
    own |= {"repetition_penalty": 1.2} if at % 4 == 1 else {"top_p": 0.9} if at % 4 == 2 else {}
    return engine.submit(engine.prepare(prompt, SamplingParams(**own, priority=priority)))


@cache
def sampled_alone(at: int) -> list[Candidate]:
    engine = make_native()
    flight = sampled(engine, at)
    finish(engine, flight)
    return flight.generation().candidates


def asked_of(search: str, setting: str) -> dict[str, Any]:
    return {**SEARCHES[search], **SETTINGS[setting]}


@cache
def alone(search: str, setting: str) -> Flight:
    """A search by itself with room for everything."""
    engine = make_native(400)
    flight = submit(engine, asked_of(search, setting))
    finish(engine, flight)
    assert flight.preemptions == 0
    return flight


def check(flight: Flight, expected: Flight) -> None:
    made, wanted = flight.generation(), expected.generation()
    assert made.candidates == wanted.candidates
    assert made.prompt_tokens == wanted.prompt_tokens
    assert (made.tree is None) == (wanted.tree is None)
    if made.tree is not None and wanted.tree is not None:
        assert made.tree.to_dict() == wanted.tree.to_dict()


SLOWER = {"patient beam", "beam of Transformers", "drawn beam"}
QUICK = {"plain", "a source, a processor and a stop string"}
EVERY = [
    pytest.param(search, setting, marks=() if search == "beam" or setting in quick else pytest.mark.slow)
    for search in SEARCHES
    for quick in [{"plain", "a trace"} if search in SLOWER else QUICK]
    for setting in SETTINGS
]
"""A search and a setting; in every run the beam with all settings, and all searches with some."""


@pytest.mark.parametrize(("search", "setting"), EVERY)
def test_a_search_beside_16_samples_changes_none_and_is_changed_by_none(search: str, setting: str) -> None:
    engine = make_native(400, step_tokens=60)  # the prompts are computed in chunks
    flights = [sampled(engine, at) for at in range(8)]
    for _ in range(5):
        engine.step()
    flight = submit(engine, asked_of(search, setting))
    flights += [sampled(engine, at) for at in range(8, 16)]
    finish(engine, flight, *flights)
    check(flight, alone(search, setting))
    for at, other in enumerate(flights):
        assert other.generation().candidates == sampled_alone(at)


@pytest.mark.parametrize(("search", "setting"), EVERY)
def test_a_preempted_search_goes_on_as_if_nothing_had_been(search: str, setting: str) -> None:
    guided = "guided" in SETTINGS[setting]
    engine = make_native(22 if guided else 16, step_tokens=23)
    flight = submit(engine, asked_of(search, setting))
    engine.drive(lambda: flight.done or (flight.generated > 3))
    others = [sampled(engine, at, priority=1) for at in (13, 14, 15)]
    finish(engine, flight, *others)
    check(flight, alone(search, setting))
    for at, other in zip((13, 14, 15), others, strict=True):
        assert other.generation().candidates == sampled_alone(at)
    if search in ("beam", "diverse beam", "stochastic beam") and setting == "plain":
        assert flight.preemptions > 0


@pytest.mark.parametrize(("search", "setting"), EVERY)
def test_a_search_on_a_warm_cache_is_the_same_and_its_stream_takes_nothing_back(
    search: str, setting: str
) -> None:
    engine = make_native(400, step_tokens=7)
    finish(engine, submit(engine, {**COMMON, "max_tokens": 1}))
    flight = submit(engine, asked_of(search, setting), streaming=True)
    finish(engine, flight)
    check(flight, alone(search, setting))
    if setting != "figures of the prompt" and search != "contrastive":  # which need every row
        assert flight.cached_tokens > 0
    best = flight.generation().candidates[0]
    chunks = [chunk for chunk in flight.outbox if chunk.index == 0]
    assert "".join(chunk.text for chunk in chunks) == best.text
    assert [token for chunk in chunks for token in chunk.tokens] == best.tokens
    assert [chunk.finish_reason for chunk in chunks][-1] == best.finish_reason
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    for at, other in enumerate(flight.generation().candidates[1:], 1):
        text = "".join(chunk.text for chunk in flight.outbox if chunk.index == at)
        assert text == other.text


def test_a_stream_of_exact_search_which_goes_back_takes_nothing_back() -> None:
    """The most probable text often begins with another token than the most probable one."""
    engine, parted = make_native(), 0
    for seed in range(12):
        own = {**COMMON, **EXACT, "n": 1}
        prompt = words(5, seed=seed)
        flight = engine.submit(engine.prepare(prompt, SamplingParams(**own)), streaming=True)
        greedy = engine.submit(
            engine.prepare(prompt, SamplingParams(**{**own, "strategy": None}, temperature=0))
        )
        finish(engine, flight, greedy)
        best = flight.generation()
        assert "".join(chunk.text for chunk in flight.outbox) == best.text
        assert [token for chunk in flight.outbox for token in chunk.tokens] == best.tokens
        parted += best.token_ids[:1] != greedy.generation().token_ids[:1]
    assert parted > 1


@pytest.mark.parametrize("search", ["drawn beam", "stochastic beam"])
def test_a_search_that_draws_is_a_function_of_its_seed(search: str) -> None:
    engine = make_native(400)
    flights = [submit(engine, {**SEARCHES[search], "seed": seed}) for seed in (5, 6, 5, None)]
    finish(engine, *flights)
    first, other, again, free = ([c.token_ids for c in f.generation().candidates] for f in flights)
    assert first == again
    assert first != other
    repeated = submit(engine, {**SEARCHES[search], "seed": flights[3].generation().seed})
    finish(engine, repeated)
    assert [c.token_ids for c in repeated.generation().candidates] == free


@pytest.mark.parametrize("search", sorted({*SEARCHES} - {"drawn beam", "stochastic beam"}))
def test_a_search_that_draws_nothing_is_the_same_whatever_the_seed(search: str) -> None:
    engine = make_native(400)
    flights = [submit(engine, {**SEARCHES[search], "seed": seed}) for seed in (5, 6, None)]
    finish(engine, *flights)
    assert all(f.generation().candidates == flights[0].generation().candidates for f in flights)


def test_what_has_no_meaning_together_is_refused_by_name() -> None:
    engine = make_native()
    for asked, said in (
        ({"strategy": Beam(2), "n": 3}, "n=3"),
        ({"strategy": Beam(4, n=2), "n": 3}, "n=3"),
        ({"strategy": Contrastive(), "n": 2}, "n=2"),
        ({"strategy": StochasticBeam(2), "n": 3}, "n=3"),
        ({"strategy": Exact(), "order": "transformers"}, "order"),
        ({"strategy": Exact(), "mirostat": 2}, "mirostat"),
        ({"strategy": Beam(2), "guided": True, "prompt_logprobs": 0}, "prompt_logprobs"),
    ):
        with pytest.raises(ParameterError, match=said):
            submit(engine, asked)
