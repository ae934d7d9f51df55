"""What beam searches have been known to get wrong, on the engine: none of it holds here."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engine.making import TOKENIZER, make_engine
from tests.strategy.models import Recording, ask, finish, make_native, words
from tests.strategy.together import plain_rows
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.params import SamplingParams
from unspool.strategy import Beam, DiverseBeam

LETTERS = [TOKENIZER.ids[TOKENIZER.characters[byte]] for byte in b"abcdefgh"]
ENDS = [2, *LETTERS[6:]]
PROMPTS = [words(count, seed=count) for count in (2, 19, 50)]
PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]
ROWS = {tuple(prompt): plain_rows(prompt) for prompt in PROMPTS}


def submit(engine: Engine, prompt: list[int], method: Any, **more: Any) -> Flight:
    own: dict[str, Any] = {
        "max_tokens": 10,
        "allowed_token_ids": [2, *LETTERS],
        "stop_token_ids": ENDS[1:],
        "include_stop": True,
        **more,
    }
    return engine.submit(engine.prepare(prompt, SamplingParams(strategy=method, **own)))


def law(
    prompt: list[int], said: list[int], penalty: float = 1.0, temperature: float = 1.0
) -> dict[int, float]:
    """What the rules make of the row after a text, plainly: a repetition penalty on the text's own tokens."""
    z = ROWS[tuple(prompt)](said).astype(np.float64)
    for token in set(said):
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    z = z[[2, *LETTERS]] / temperature
    return dict(zip([2, *LETTERS], (z - np.logaddexp.reduce(z)).tolist(), strict=True))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_length_penalty_divides_by_generated_tokens_whatever_the_prompt_and_its_neighbours(
    penalty: float,
) -> None:
    """By prompt and output, or by a padded length: vllm 2606, 7007; transformers 25455."""
    engine = make_native(200)
    flights = [submit(engine, prompt, Beam(4, penalty, "never"), n=4) for prompt in PROMPTS]
    finish(engine, *flights)
    lengths = set()
    for flight in flights:
        made = flight.generation().candidates
        for candidate in made:
            assert candidate.score is not None
            assert candidate.total is not None
            expected = candidate.total / len(candidate.token_ids) ** penalty
            assert candidate.score == pytest.approx(expected, rel=1e-12)
            lengths.add(len(candidate.token_ids))
        assert [c.score for c in made] == sorted((c.score or 0.0 for c in made), reverse=True)
    assert len(lengths) > 1


@cache
def every_text(at: int, most: int) -> list[tuple[list[int], float]]:
    """Each text of three letters and an end, with its log-probability, by enumeration."""
    z_of = ROWS[tuple(PROMPTS[at])]
    live: list[tuple[list[int], float]] = [([], 0.0)]
    done: list[tuple[list[int], float]] = []
    few = [2, *LETTERS[:3]]
    for length in range(1, most + 1):
        grown: list[tuple[list[int], float]] = []
        for said, total in live:
            z = z_of(said).astype(np.float64)[few]
            for token, logprob in zip(few, (z - np.logaddexp.reduce(z)).tolist(), strict=True):
                over = done if token == 2 or length == most else grown
                over.append(([*said, token], total + logprob))
        live = grown
    return done


def test_the_bound_is_right_for_each_penaltys_sign_and_of_one_request_alone() -> None:
    """A bound for the other sign, or of a whole batch: transformers 20901, 21368, 38778."""
    engine, most = make_native(1500), 4
    own: Any = {"max_tokens": most, "allowed_token_ids": [2, *LETTERS[:3]], "n": 5}
    asked = [(at, penalty) for at in range(3) for penalty in (*PENALTIES, -20.0, 20.0)]
    flights = [submit(engine, PROMPTS[at], Beam(60, penalty, "never"), **own) for at, penalty in asked]
    finish(engine, *flights)
    for flight, (at, penalty) in zip(flights, asked, strict=True):
        texts = sorted(every_text(at, most), key=lambda text: -text[1] / len(text[0]) ** penalty)
        made = flight.generation().candidates
        expected = [total / len(said) ** penalty for said, total in texts[:5]]
        assert [c.score for c in made] == pytest.approx(expected, rel=1e-4)
        assert made[0].token_ids == texts[0][0]


@pytest.mark.parametrize("method", [Beam(5, 0.7), DiverseBeam(6, 2, 0.4)])
def test_the_models_score_and_the_processed_one_are_kept_apart_and_each_is_a_log_probability(
    method: Any,
) -> None:
    """Sums of what processors left, no log-probabilities any more: transformers 19143, 14993."""
    rules: Any = {"repetition_penalty": 1.5, "penalty_scope": "output", "temperature": 0.7, "n": 3}
    engine = make_native(200)
    flights = [submit(engine, prompt, method, **rules) for prompt in PROMPTS]
    finish(engine, *flights)
    for flight, prompt in zip(flights, PROMPTS, strict=True):
        for candidate in flight.generation().candidates:
            total = logprob = 0.0
            for at, token in enumerate(candidate.tokens):  # a branch's rules know its own tokens alone
                said = candidate.token_ids[:at]
                processed = law(prompt, said, 1.5, 0.7)[token.id]
                row = ROWS[tuple(prompt)](said).astype(np.float64)
                own = float(row[token.id] - np.logaddexp.reduce(row))
                assert token.processed_logprob == pytest.approx(processed, abs=1e-4)
                assert token.logprob == pytest.approx(own, abs=1e-4)
                total, logprob = total + processed, logprob + own
            assert candidate.total == pytest.approx(total, abs=1e-3)
            assert candidate.logprob == pytest.approx(logprob, abs=1e-3)
            assert abs(total - logprob) > 0.1


@pytest.mark.parametrize("stopping", [True, False, "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 2.0])
def test_a_search_ends_and_computes_each_of_its_beams_tokens_once(penalty: float, stopping: Any) -> None:
    """Never ending, or the whole text again at each step: vllm 7965, 34782."""
    recording = Recording()
    engine, width, most = make_engine(recording, 200), 6, 30
    prompt = PROMPTS[2]
    flight = submit(engine, prompt, Beam(width, penalty, stopping), max_tokens=most, min_tokens=most - 5)
    finish(engine, flight)
    assert len(flight.generation().token_ids) >= most - 5
    assert len(recording.steps) <= most
    assert recording.computed <= len(prompt) + width * (most - 1)
    assert max(len(step.tokens) for step in recording.steps[1:]) <= width


def test_beams_hold_one_prompt_and_their_own_blocks() -> None:
    """A prompt for each beam, or a copy of all at each fork, does not fit: forks share blocks."""
    recording = Recording()
    engine, width, most = make_engine(recording, 60), 8, 20
    prompt = words(96, seed=1)
    flight = ask(engine, prompt, max_tokens=1)
    finish(engine, flight)
    flight = submit(engine, prompt, Beam(width), max_tokens=most, ignore_eos=True, stop_token_ids=())
    held = 0
    while not flight.done:
        engine.step()
        pool = engine.main.pool
        held = max(held, pool.num_blocks - pool.num_free)
    finish(engine)
    shared, own = len(prompt) // 16, math.ceil(most / 16) + 1
    assert held <= shared + width * own
    assert held < 2 * (shared + own) + width * own / 2
    assert recording.copied <= width * most * 16


def test_a_search_beside_another_ends_when_its_own_bound_says_so() -> None:
    """A batch whose longest search keeps the others going, or ends them."""
    alone, steps = [], []
    ways = [Beam(3, -1.0, True), Beam(4, 2.0, "never"), Beam(2, 0.0)]
    for prompt, method in zip(PROMPTS, ways, strict=True):
        engine = make_native(200)
        flight = submit(engine, prompt, method, max_tokens=40)
        finish(engine, flight)
        alone.append(flight.generation().candidates)
        steps.append(engine.stats().steps)
    engine = make_native(200)
    flights = [submit(engine, p, method, max_tokens=40) for p, method in zip(PROMPTS, ways, strict=True)]
    ended: dict[int, int] = {}
    while engine.step():
        for at, flight in enumerate(flights):
            if flight.done:
                ended.setdefault(at, engine.stats().steps)
    assert [flight.generation().candidates for flight in flights] == alone
    assert [ended[at] for at in range(3)] == steps
    assert len(set(steps)) > 1
