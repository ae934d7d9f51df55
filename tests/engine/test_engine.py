"""The engine on the reference backend: the same request gives the same tokens, and every block comes back."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.engine.making import (
    SPEC,
    TOKENIZER,
    WEIGHTS,
    generate,
    make_engine,
    read_rows,
    run,
    scripted,
    stream,
)
from tests.reference.llama import ReferenceBackend
from tests.reference.scripted import ScriptedBackend
from unspool.backend import base
from unspool.backend.base import StepBatch, StepOutput
from unspool.cache import BLOCK_SIZE
from unspool.errors import BackendError, ContextLengthError, ParameterError, RowError
from unspool.params import SamplingParams, Settings

PROMPT = [int(t) for t in np.random.default_rng(3).integers(3, SPEC.vocab_size, 37)]


def test_the_backend_and_the_cache_agree_on_a_block() -> None:
    assert base.BLOCK_SIZE == BLOCK_SIZE


def test_greedy_text_is_the_most_probable_token_each_time() -> None:
    expected = list(PROMPT)
    for _ in range(20):
        expected.append(int(np.argmax(read_rows(make_engine(), expected)[-1])))
    made = generate(make_engine(), PROMPT, temperature=0, max_tokens=20, ignore_eos=True)
    assert made.token_ids == expected[len(PROMPT) :]
    assert made.finish_reason == "length"
    assert all(token.rank == 0 and token.kept == 1 for token in made.tokens)
    assert (
        generate(make_engine(), PROMPT, top_k=1, max_tokens=20, ignore_eos=True).token_ids == made.token_ids
    )


@pytest.mark.parametrize("step_tokens", [1, 5, 16, 36, 37])
def test_chunking_the_prompt_changes_nothing(step_tokens: int) -> None:
    whole = generate(make_engine(), PROMPT, seed=5, max_tokens=12)
    backend = ReferenceBackend(SPEC, WEIGHTS, max_step_tokens=step_tokens)
    assert generate(make_engine(backend), PROMPT, seed=5, max_tokens=12).candidates == whole.candidates


@pytest.mark.parametrize("prompt_tokens", [15, 16, 17, 37])
def test_samples_differ_and_each_is_what_it_would_be_alone(prompt_tokens: int) -> None:
    prompt = PROMPT[:prompt_tokens]
    together = generate(make_engine(), prompt, seed=9, n=4, max_tokens=24)
    assert len({tuple(c.token_ids) for c in together.candidates}) == 4
    assert [c.index for c in together.candidates] == [0, 1, 2, 3]
    alone = generate(make_engine(), prompt, seed=9, max_tokens=24)
    assert alone.candidates[0] == together.candidates[0]
    assert together.text == together.candidates[0].text
    tight = generate(make_engine(num_blocks=5), prompt, seed=9, n=4, max_tokens=24)
    assert tight.candidates == together.candidates


def test_samples_share_the_prompts_blocks() -> None:
    engine = make_engine()
    settings = SamplingParams(n=4, seed=1, max_tokens=8, ignore_eos=True)
    flight = engine.submit(engine.prepare(PROMPT[:33], settings))
    engine.drive(lambda: bool(flight.branches) and all(len(b.token_ids) > 2 for b in flight.branches))
    assert engine.stats().cache.held == 2 + 4
    engine.cancel(flight)
    assert engine.main.pool.num_free == engine.main.pool.num_blocks


def test_a_missing_seed_is_drawn_and_gives_the_same_again() -> None:
    first = generate(make_engine(), PROMPT, max_tokens=10)
    assert generate(make_engine(), PROMPT, max_tokens=10).seed != first.seed
    assert generate(make_engine(), PROMPT, max_tokens=10, seed=first.seed).candidates == first.candidates


def test_a_continued_request_continues_its_noise() -> None:
    whole = generate(make_engine(), PROMPT, seed=4, max_tokens=12, ignore_eos=True)
    rest = generate(make_engine(), PROMPT + whole.token_ids[:5], seed=4, max_tokens=7, ignore_eos=True)
    assert rest.token_ids == whole.token_ids[5:]


def test_a_full_context_is_used_to_its_last_token() -> None:
    made = generate(make_engine(), PROMPT, max_tokens=SPEC.context_length - len(PROMPT), ignore_eos=True)
    assert made.usage.total_tokens == SPEC.context_length
    default = generate(make_engine(), PROMPT, ignore_eos=True)
    assert default.usage.total_tokens == SPEC.context_length


def test_what_cannot_fit_is_refused_with_what_does() -> None:
    room = SPEC.context_length - len(PROMPT)
    with pytest.raises(ContextLengthError, match=rf"max_tokens={room + 1} .* at most {room} do"):
        make_engine().prepare(PROMPT, SamplingParams(max_tokens=room + 1))
    with pytest.raises(
        ContextLengthError, match="128 tokens; the model's context of 128 tokens has room for 127"
    ):
        make_engine().prepare([5] * 128, SamplingParams())
    with pytest.raises(ContextLengthError, match=r"the cache of 32 tokens has room for 31.*cache_tokens"):
        make_engine(num_blocks=2).prepare(PROMPT, SamplingParams())


def test_prompts_that_are_none_are_refused() -> None:
    with pytest.raises(ParameterError, match="empty"):
        make_engine().prepare([], SamplingParams())
    for bad in (-1, SPEC.vocab_size):
        with pytest.raises(ParameterError, match=rf"token id {bad} \(at 1\).* 0 to {SPEC.vocab_size - 1}"):
            make_engine().prepare([5, bad], SamplingParams())
    with pytest.raises(ParameterError, match="stop_token_ids"):
        make_engine().prepare([5], SamplingParams(stop_token_ids=[SPEC.vocab_size]))


def test_a_row_without_a_law_ends_its_request_with_an_error() -> None:
    engine = make_engine(ScriptedBackend(SPEC, [9] * 64, nan_at=4))
    with pytest.raises(RowError, match=r"request 1, sample 0, token 4: .*NaN.*top_k"):
        generate(engine, [9], top_k=5, n=2)
    assert engine.main.pool.num_free == engine.main.pool.num_blocks
    assert generate(engine, [9], max_tokens=3).token_ids == [9, 9, 9]


class FailingBackend(ReferenceBackend):
    """Raises at its third step."""

    failure: BaseException = BackendError("no")
    steps = 0

    def forward(self, step: StepBatch) -> StepOutput:
        self.steps += 1
        if self.steps == 3:
            raise self.failure
        return super().forward(step)


@pytest.mark.parametrize("failure", [BackendError("no"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("step_tokens", [8, 256])
def test_blocks_come_back_after_any_failure(failure: BaseException, step_tokens: int) -> None:
    backend = FailingBackend(SPEC, WEIGHTS, max_step_tokens=step_tokens)
    backend.failure = failure
    engine = make_engine(backend)
    with pytest.raises(type(failure)):
        generate(engine, PROMPT, n=3)
    assert engine.main.pool.num_free == engine.main.pool.num_blocks
    made = generate(engine, PROMPT, seed=1, max_tokens=4)
    assert made.candidates == generate(make_engine(), PROMPT, seed=1, max_tokens=4).candidates


def test_two_requests_of_one_thread_get_what_they_would_alone() -> None:
    engine = make_engine()
    alone = [generate(make_engine(), PROMPT, seed=s, max_tokens=10).candidates for s in (1, 2)]
    flights = [engine.submit(engine.prepare(PROMPT, SamplingParams(seed=s, max_tokens=10))) for s in (1, 2)]
    run(engine, flights)
    assert [flight.generation().candidates for flight in flights] == alone


def test_a_stream_that_nobody_reads_holds_nobody_up() -> None:
    engine = make_engine(num_blocks=4)
    settings: Settings = {"max_tokens": 20, "seed": 1, "ignore_eos": True}
    unread = engine.submit(engine.prepare(PROMPT, SamplingParams(**settings)), streaming=True)
    engine.drive(lambda: bool(unread.outbox))
    other = engine.submit(engine.prepare(PROMPT, SamplingParams(**settings)))
    engine.drive(lambda: other.done)
    assert len(other.generation().token_ids) == 20
    engine.drive(lambda: unread.done)
    assert [token for chunk in unread.outbox for token in chunk.tokens] == other.generation().tokens


def test_threads_wait_for_each_other_and_get_what_they_would_alone() -> None:
    engine = make_engine(num_blocks=6)
    results: dict[int, Any] = {}

    def work(seed: int) -> None:
        flight = engine.submit(engine.prepare(PROMPT, SamplingParams(seed=seed, max_tokens=12)))
        engine.drive(lambda: flight.done)
        results[seed] = flight.generation().candidates

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.main.pool.num_free == engine.main.pool.num_blocks
    for seed in range(5):
        assert results[seed] == generate(make_engine(), PROMPT, seed=seed, max_tokens=12).candidates


@pytest.mark.parametrize("scope", ["output", "all", 1, 6])
def test_a_penalty_sees_its_scope(scope: Any) -> None:
    made = generate(
        make_engine(), PROMPT, temperature=0, repetition_penalty=3.0, penalty_scope=scope, max_tokens=12
    )
    ids = list(PROMPT)
    for token in made.token_ids:
        scopes = {"output": ids[len(PROMPT) :], "all": ids, 1: ids[-1:], 6: ids[-6:]}
        row = read_rows(make_engine(), ids)[-1]
        for t in set(scopes[scope]):
            row[t] = row[t] / np.float32(3) if row[t] > 0 else row[t] * np.float32(3)
        assert int(np.argmax(row)) == token
        ids.append(token)


def test_alternatives_are_the_most_probable_tokens() -> None:
    made = generate(make_engine(), PROMPT, logprobs=3, seed=2, max_tokens=5)
    for token in made.tokens:
        assert len(token.top_logprobs) == 3
        assert (
            token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob >= token.logprob or token.rank < 2
        )
        if token.rank < 3:
            assert token.top_logprobs[token.rank].id == token.id
            assert token.top_logprobs[token.rank].logprob == token.logprob


def test_the_streams_pieces_are_the_result() -> None:
    for seed in range(8):
        settings: dict[str, Any] = {"seed": seed, "n": 2, "max_tokens": 20, "stop": ["e", "in", "\n"]}
        whole = generate(make_engine(), PROMPT, **settings)
        chunks = stream(make_engine(), PROMPT, **settings)
        for candidate in whole.candidates:
            mine = [chunk for chunk in chunks if chunk.index == candidate.index]
            assert "".join(chunk.text for chunk in mine) == candidate.text
            assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens
            assert mine[-1].finish_reason == candidate.finish_reason
            assert all(chunk.finish_reason is None for chunk in mine[:-1])


def test_figures_of_time_and_use() -> None:
    made = generate(make_engine(), PROMPT, n=2, max_tokens=6, ignore_eos=True)
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (37, 12)
    assert (made.timing.drawn_tokens, made.timing.decoded_tokens) == (12, 10)
    assert 0 < made.timing.prefill_seconds <= made.timing.time_to_first_token
    assert made.timing.tokens_per_second > 0


def test_end_of_text_ends_and_leaves_nothing() -> None:
    said = TOKENIZER.encode("the end")
    made = generate(scripted([*said, 0, 5, 5]), [9], temperature=0)
    assert (made.text, made.token_ids) == ("the end", said)
    assert (made.finish_reason, made.stop_reason) == ("stop", 0)
    assert made.usage.completion_tokens == len(said)
    kept = generate(scripted([*said, 0, 5, 5]), [9], temperature=0, include_stop=True)
    assert (kept.text, kept.token_ids) == ("the end", [*said, 0])
    shown = generate(scripted([*said, 0]), [9], temperature=0, include_stop=True, skip_special_tokens=False)
    assert shown.text == "the end<|endoftext|>"
    on = generate(scripted([*said, 0, 5, 5]), [9], temperature=0, ignore_eos=True, max_tokens=len(said) + 2)
    assert on.token_ids == [*said, 0, 5]
    asked = generate(scripted(said), [9], temperature=0, stop_token_ids=[said[1]], ignore_eos=True)
    assert (asked.token_ids, asked.stop_reason) == (said[:1], said[1])


@pytest.mark.parametrize("prompt_tokens", [16, 32])
def test_samples_take_turns_in_a_cache_of_one_sequence_where_the_prompt_ends_with_a_block(
    prompt_tokens: int,
) -> None:
    prompt = [5] * prompt_tokens
    asked: Settings = {"seed": 1, "n": 3, "max_tokens": 16, "ignore_eos": True}
    roomy = generate(make_engine(), prompt, **asked)
    tight = generate(make_engine(num_blocks=prompt_tokens // 16 + 1), prompt, **asked)
    assert tight.candidates == roomy.candidates


def test_what_came_of_a_stream_that_lost_its_place_is_not_held_back() -> None:
    engine = make_engine(num_blocks=6)
    settings = SamplingParams(seed=1, max_tokens=55, ignore_eos=True)
    first = engine.submit(engine.prepare(PROMPT, settings))
    stream = engine.submit(engine.prepare(PROMPT[:3], settings), streaming=True, interval=1e9)
    engine.drive(lambda: stream.preemptions > 0)
    assert not first.done
    assert not stream.branches[0].running
    shown = [token for chunk in stream.outbox for token in chunk.tokens]
    assert len(shown) == stream.branches[0].final > 1
    run(engine, [first, stream])
