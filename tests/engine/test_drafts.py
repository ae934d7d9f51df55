"""Guesses change how many steps a text takes, and not one bit of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import SPEC, make_engine, scripted
from tests.reference.scripted import ScriptedBackend
from tests.speculate.proposers import Said, Scripted
from tests.strategy.models import Recording, ask, candidates, check_empty, finish, make_native, native, words
from unspool.backend.base import StepBatch, StepOutput
from unspool.errors import ParameterError
from unspool.results import Candidate
from unspool.speculate import DraftTree, expected_tokens

PROMPT = words(37, seed=3)
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 1, "logprobs": 3},
    {"seed": 2, "n": 4, "top_k": 40, "top_p": 0.95},
    {"seed": 3, "repetition_penalty": 1.7, "penalty_scope": "output"},
    {"seed": 4, "repetition_penalty": 1.7, "penalty_scope": "all", "n": 2},
    {"seed": 5, "repetition_penalty": 2.5, "penalty_scope": 1, "temperature": 0},
    {"seed": 6, "repetition_penalty": 1.7, "penalty_scope": 9, "n": 3},
    {"seed": 7, "stop": ["e", "\n", "q"], "n": 4},
    {"seed": 9, "prompt_logprobs": 2, "n": 2},
    {"seed": 8, "stop_token_ids": list(range(40, 90)), "n": 4, "include_stop": True},
]


def favour_news(token_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A caller's own rule that goes by all tokens so far: what was said is less likely, as is its sum."""
    logits[token_ids[-9:]] -= np.float32(3)
    logits[sum(token_ids) % len(logits)] -= np.float32(5)
    return logits


RULED: dict[str, dict[str, Any]] = {
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.7, "n": 2},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.7, "n": 3, "logprobs": 2},
    "llama.cpp's": {
        **{"mirostat": 2, "mirostat_eta": 0.7, "order": "llama.cpp", "temperature": 0.8, "top_k": 50},
        **{"repetition_penalty": 1.3, "frequency_penalty": 0.3, "penalty_scope": 20},
    },
    "llama.cpp's 1": {"mirostat": 1, "mirostat_eta": 0.7, "order": "llama.cpp", "temperature": 1.2, "n": 2},
    "adaptive-p": {"adaptive_target": 0.3, "adaptive_decay": 0.6, "n": 2},
    "own": {"logits_processors": [favour_news], "logprobs": 2, "n": 2},
    "own and mirostat 1": {"logits_processors": [favour_news], "mirostat": 1, "mirostat_eta": 0.7},
    "own and mirostat 2": {
        **{"logits_processors": [favour_news], "mirostat": 2, "mirostat_eta": 0.7},
        **{"trace": True, "logprobs": 2, "n": 2},
    },
    "own and adaptive-p": {"logits_processors": [favour_news], "adaptive_target": 0.3},
    "traced": {"trace": True, "temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.5, "n": 2},
    "traced mirostat": {"trace": True, "mirostat": 2, "mirostat_eta": 0.7, "top_n_sigma": 2.0},
    "DRY": {
        **{"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": [[PROMPT[3]]]},
        **{"temperature": 0.3, "n": 2},
    },
    "n-grams": {"no_repeat_ngram_size": 2, "penalty_scope": "all", "temperature": 0.3, "logprobs": 1},
    "bad words": {"bad_words": [[5], *([a, b] for a in range(20, 40) for b in range(3, 260, 5))], "n": 2},
    "frequency and presence": {"frequency_penalty": 0.8, "presence_penalty": 0.4, "penalty_scope": 6},
    "minimum": {"min_tokens": 30, "stop_token_ids": list(range(40, 90)), "xtc_probability": 0.5},
}
SETTINGS += [{"seed": 10 + i, **asked} for i, asked in enumerate(RULED.values())]


def without(asked: dict[str, Any], prompt: Sequence[int] = PROMPT) -> list[Candidate]:
    """What a request gives where nobody guesses."""
    return candidates(make_native(), prompt, **asked)


def full(asked: dict[str, Any]) -> list[list[int]]:
    """All tokens that are drawn, those included that a stop cuts off."""
    free = {name: value for name, value in asked.items() if not name.startswith(("stop", "include"))}
    return [c.token_ids for c in without({**free, "ignore_eos": True})]


PROPOSERS: dict[str, dict[str, Any]] = {
    "right": {},
    "right, one": {"length": 1},
    "right, too long": {"length": 100},
    "wrong": {"wrong": 1.0},
    "partly right": {"wrong": 0.3, "length": 6},
    "trees": {"trees": True},
    "partly right trees": {"trees": True, "wrong": 0.2, "length": 7},
}


@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("asked", SETTINGS)
@pytest.mark.parametrize(("step_tokens", "num_blocks"), [(512, 64), (9, 6)])
def test_guesses_change_nothing(kind: str, asked: dict[str, Any], step_tokens: int, num_blocks: int) -> None:
    asked = {"max_tokens": 40, **asked}
    engine = make_native(num_blocks, step_tokens=step_tokens)
    proposer = Said(PROMPT, full(asked), **PROPOSERS[kind])
    assert candidates(engine, PROMPT, proposer=proposer, **asked) == without(asked)
    assert proposer.most  # it was asked
    assert max(proposer.most) < min(40, step_tokens)


@given(
    max_tokens=st.integers(1, 60),
    prompt=st.integers(1, 50),
    proposal=st.sampled_from(sorted(PROPOSERS)),
    n=st.integers(1, 3),
    num_blocks=st.integers(7, 12),
    step_tokens=st.integers(1, 50),
    sharing=st.booleans(),
    seed=st.integers(0, 3),
    rules=st.sampled_from(["none", *RULED]),
)
@settings(max_examples=80)
def test_guesses_change_nothing_in_any_company(
    max_tokens: int,
    prompt: int,
    proposal: str,
    n: int,
    num_blocks: int,
    step_tokens: int,
    sharing: bool,
    seed: int,
    rules: str,
) -> None:
    engine = make_engine(native(), num_blocks, step_tokens=step_tokens, sharing=sharing)
    asked: Any = {"logprobs": 1, **RULED.get(rules, {}), "max_tokens": max_tokens, "n": n}
    asked |= {"ignore_eos": True, "stop_token_ids": ()}
    flights, expected = [], []
    for i in range(3):
        text = words(prompt, seed=i)
        alone = without({**asked, "seed": seed + i}, text)
        said = Said(text, [c.token_ids for c in alone], **{"seed": i, **PROPOSERS[proposal]})
        flights.append(ask(engine, text, seed=seed + i, proposer=None if i == 1 else said, **asked))
        expected.append(alone)
        engine.step()
    finish(engine, *flights)
    assert [flight.generation().candidates for flight in flights] == expected


@pytest.mark.parametrize("length", [1, 3, 8])
def test_a_perfect_proposer_needs_as_few_steps_as_expected(length: int) -> None:
    recording = Recording()
    engine = make_engine(recording)
    asked: Any = {"temperature": 0, "max_tokens": 1 + 6 * (length + 1), "ignore_eos": True}
    made = candidates(engine, PROMPT, proposer=Said(PROMPT, full(asked), length), **asked)
    assert made == without(asked)
    assert len(recording.steps) == 1 + 6  # the prompt's, and then length + 1 tokens each
    assert expected_tokens(1.0, length) == length + 1
    wrong = Recording()
    candidates(make_engine(wrong), PROMPT, proposer=Said(PROMPT, full(asked), length, wrong=1.0), **asked)
    assert len(wrong.steps) == asked["max_tokens"]


@pytest.mark.parametrize("rules", RULED)
def test_right_guesses_are_taken_under_every_rule(rules: str) -> None:
    recording = Recording()
    asked: Any = {**RULED[rules], "seed": 5, "n": 1, "max_tokens": 1 + 6 * 5, "ignore_eos": True}
    asked["stop_token_ids"] = ()
    said = [candidate.token_ids for candidate in without(asked)]
    assert candidates(make_engine(recording), PROMPT, proposer=Said(PROMPT, said, 4), **asked) == without(
        asked
    )
    assert len(recording.steps) == 1 + 6


@pytest.mark.parametrize("rules", [{}, {"mirostat": 2, "trace": True}, {"adaptive_target": 0.3}])
@pytest.mark.parametrize("kind", ["wrong", "partly right", "partly right trees"])
def test_what_an_own_rule_does_after_a_wrong_guess_is_nothing_to_anybody(
    kind: str, rules: dict[str, Any]
) -> None:
    astray: list[list[int]] = []
    texts: list[list[int]] = []

    def strict(token_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Fails, in one way or another, after whatever is no beginning of the texts."""
        here = list(token_ids)
        if texts and not any(text[: len(here)] == here for text in texts):
            astray.append(here)
            if len(here) % 2:
                raise CallerError
            logits[:] = np.nan
        return logits

    asked: Any = {**rules, "logits_processors": [strict], "seed": 3, "max_tokens": 40, "ignore_eos": True}
    expected = without(asked)
    texts += [PROMPT + candidate.token_ids for candidate in expected]
    said = Said(PROMPT, [candidate.token_ids for candidate in expected], **PROPOSERS[kind])
    assert candidates(make_native(), PROMPT, proposer=said, **asked) == expected
    if not set(rules) & {"mirostat", "adaptive_target"}:
        assert astray  # all rows of a draft are looked at, unless a rule learns: then only those that matter
    else:
        assert not astray


def test_the_cache_holds_the_right_keys_long_after_a_draft() -> None:
    """Guesses for a while, then none: what is computed after them depends on what they left behind."""
    asked: Any = {"seed": 4, "max_tokens": 80, "ignore_eos": True}
    said = Said(PROMPT, full(asked), length=5, trees=True)
    proposer = Scripted(lambda tokens, most: said.propose(tokens, most) if len(tokens) < 60 else None)
    engine = make_native()
    first = candidates(engine, PROMPT, proposer=proposer, **asked)
    assert first == without(asked)
    talk = [*PROMPT, *first[0].token_ids[:70]]  # and what entered the prefix cache is right too
    again = ask(engine, talk, seed=9, max_tokens=20, ignore_eos=True)
    finish(engine, again)
    assert again.generation().usage.cached_tokens == (len(talk) - 1) // 16 * 16
    assert again.generation().candidates == without({"seed": 9, "max_tokens": 20, "ignore_eos": True}, talk)


def test_a_guess_takes_no_block_and_no_token_of_a_step_from_anybody() -> None:
    recording = Recording()
    engine = make_engine(recording, 6, step_tokens=12)
    greedy = Scripted(lambda tokens, most: DraftTree.chain([5] * (most + 50)))
    asked: Any = {"max_tokens": 40, "ignore_eos": True, "seed": 1}
    flights = [ask(engine, words(5, seed=i), proposer=greedy, **asked) for i in range(2)]
    while engine.busy:
        running = [(b, len(b.token_ids)) for b in engine.scheduler.running if b.token_ids]
        engine.step()
        assert all(len(b.token_ids) > count for b, count in running)
        assert all(len(step.tokens) <= 12 for step in recording.steps)
    assert engine.stats().preemptions == 0
    finish(engine, *flights)


@pytest.mark.parametrize("length", range(1, 8))
def test_an_end_inside_an_accepted_run_ends_there(length: int) -> None:
    text = list(b"abcdefgh")
    said = [3 + b - 33 for b in text]  # the tiny vocabulary's printable bytes
    for asked in ({"stop": "de"}, {"stop_token_ids": [said[3]]}, {"max_tokens": 4}, {}):
        for kept in (False, True):
            options: Any = {"temperature": 0, "include_stop": kept, **asked}
            plain = candidates(scripted([*said, 2]), [9], **options)
            proposer = Scripted(
                lambda tokens, most: DraftTree.chain([*said, 2, *[7] * 9][len(tokens) - 1 :][:length])
            )
            drafted = candidates(scripted([*said, 2]), [9], proposer=proposer, **options)
            assert drafted == plain
            assert drafted[0].finish_reason == ("length" if "max_tokens" in asked else "stop")


@pytest.mark.parametrize("asked", SETTINGS)
def test_a_stream_of_accepted_runs_is_the_result(asked: dict[str, Any]) -> None:
    asked = {"max_tokens": 40, **asked}
    engine = make_native()
    flight = ask(engine, PROMPT, proposer=Said(PROMPT, full(asked), 6, 0.1), streaming=True, **asked)
    finish(engine, flight)
    for candidate in without(asked):
        mine = [chunk for chunk in flight.outbox if chunk.index == candidate.index]
        assert "".join(chunk.text for chunk in mine) == candidate.text
        assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens
        assert mine[-1].finish_reason == candidate.finish_reason


class CallerError(Exception):
    """What a caller's own code raises."""


def throwing(tokens: Sequence[int], most: int) -> DraftTree:
    raise CallerError("mine")


NO_DRAFTS: dict[str, tuple[Any, type[Exception]]] = {
    "throws": (throwing, CallerError),
    "repeats a sibling": (lambda tokens, most: DraftTree([5, 5], [-1, -1]), ParameterError),
    "id beyond": (lambda tokens, most: DraftTree([5, SPEC.vocab_size], [-1, 0]), ParameterError),
    "negative id": (lambda tokens, most: DraftTree.chain([-1]), ParameterError),
    "huge id": (lambda tokens, most: DraftTree.chain([1 << 70]), ParameterError),
    "text": (lambda tokens, most: DraftTree.chain(["a"]), ParameterError),  # type: ignore[list-item]
    "half a token": (lambda tokens, most: DraftTree.chain([1.5]), ParameterError),  # type: ignore[list-item]
    "a list": (lambda tokens, most: [1, 2], ParameterError),
    "a number": (lambda tokens, most: 7, ParameterError),
}


@pytest.mark.parametrize("kind", NO_DRAFTS)
def test_what_is_no_draft_ends_its_own_request_alone(kind: str) -> None:
    make, error = NO_DRAFTS[kind]
    proposer = Scripted(lambda tokens, most: make(tokens, most) if len(tokens) > len(PROMPT) + 4 else None)
    engine = make_native()
    good: Any = {"max_tokens": 12, "ignore_eos": True, "seed": 1}
    before = ask(engine, words(20), proposer=Said(words(20), [[5] * 12]), **good)
    bad = ask(engine, PROMPT, proposer=proposer, **good, n=2)
    after = ask(engine, PROMPT, **good)
    finish(engine, before, bad, after)
    with pytest.raises(error):
        bad.generation()
    assert before.generation().candidates == without(good, words(20))
    assert after.generation().candidates == without(good)


def test_none_and_an_empty_tree_are_no_guess() -> None:
    asked: Any = {"max_tokens": 12, "seed": 1}
    for make in (lambda tokens, most: None, lambda tokens, most: DraftTree((), ())):
        assert candidates(make_native(), PROMPT, proposer=Scripted(make), **asked) == without(asked)


def test_a_throwing_proposer_does_not_end_one_that_waits_for_a_block() -> None:
    """Where the only planned request is the one that fails, the other is as it was."""
    engine = make_native(num_blocks=4)
    good: Any = {"max_tokens": 30, "ignore_eos": True, "seed": 1}

    def throw_while_another_waits(tokens: Sequence[int], most: int) -> DraftTree | None:
        last = engine.scheduler.running[-1]
        stuck = last.flight is other and last.tracks[0].table.length == 32
        return throwing(tokens, most) if stuck else None

    bad = ask(engine, words(24), proposer=Scripted(throw_while_another_waits), **good)
    other = ask(engine, words(30, seed=1), **good)
    finish(engine, bad, other)
    assert isinstance(bad.error, CallerError)
    assert other.generation().candidates == without(good, words(30, seed=1))


def test_a_guessed_row_without_a_law_counts_only_where_it_is_needed() -> None:
    """After ``nan_at`` the row holds NaN: a request that ends before it is whole, guessed or not."""
    said = list(range(10, 30))
    for end, fails in ((8, False), (9, False), (10, True)):
        backend = ScriptedBackend(SPEC, [9, *said], nan_at=9)
        engine = make_engine(backend)
        proposer = Scripted(lambda tokens, most: DraftTree.chain([9, *said][len(tokens) : len(tokens) + 4]))
        flight = ask(engine, [9], proposer=proposer, max_tokens=end, temperature=0)
        finish(engine, flight)
        assert (flight.error is not None) == fails
        if not fails:
            assert flight.generation().token_ids == said[:end]


def test_a_step_that_fails_with_guesses_is_computed_again() -> None:
    class Flaky(Recording):
        """Every fifth step fails."""

        def forward(self, step: StepBatch) -> StepOutput:
            output = super().forward(step)
            if len(self.steps) % 5 == 0:
                raise MemoryError("no")
            return output

    engine = make_engine(Flaky())
    asked: Any = {"max_tokens": 24, "seed": 3, "ignore_eos": True}
    flights = [
        ask(engine, words(20, seed=i), proposer=Said(words(20, seed=i), [[5] * 24], 3), **asked)
        for i in range(4)
    ]
    finish(engine, *flights)
    whole = [flight for flight in flights if flight.error is None]
    for flight in whole:
        prompt = flight.request.prompt
        assert flight.generation().candidates == without(asked, prompt)
    check_empty(engine)


def test_nothing_is_guessed_while_a_prompt_is_being_read() -> None:
    prompt = [4]
    asked: dict[str, Any] = {"seed": 1, "max_tokens": 5, "ignore_eos": True, "prompt_logprobs": 1}
    [plain] = without(asked, prompt)
    proposer = Said(prompt, [plain.token_ids], length=3)
    [guessed] = candidates(make_engine(native()), prompt, proposer=proposer, **asked)
    assert guessed == plain
    assert proposer.most
