"""The front door, on a tiny model in a file and the native backend."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unspool
from tests.reference.tiny import random_weights, tiny_spec
from unspool import LLM, ContextLengthError, ModelFileError, ParameterError, SamplingParams, UnspoolError
from unspool.cache.size import CACHE_TYPES, CacheType
from unspool.llm import PENALTIES, cache_blocks, model_settings, shortened_chats
from unspool.params import Settings

PROMPT = "the inner other"


def free_blocks(llm: LLM) -> tuple[int, int]:
    pool = llm.engine.main.pool
    return pool.num_free, pool.num_blocks


def test_one_prompt_gives_one_result_and_a_list_gives_a_list(llm: LLM) -> None:
    one = llm.generate(PROMPT, seed=1, max_tokens=6)
    ids = llm.tokenizer.encode(PROMPT)
    assert llm.generate(ids, seed=1, max_tokens=6).candidates == one.candidates
    assert llm.generate(np.array(ids), seed=1, max_tokens=6).candidates == one.candidates
    listed = llm.generate([PROMPT, "x"], seed=1, max_tokens=6)
    assert listed[0].candidates == one.candidates
    assert llm.generate([ids, ids[:3]], seed=1, max_tokens=6)[0].candidates == one.candidates
    assert llm.generate([ids, PROMPT], seed=1, max_tokens=6)[1].candidates == one.candidates
    no_prompts: list[str] = []
    assert llm.generate(no_prompts, seed=1) == []
    assert str(one) == one.text == llm.tokenizer.decode(one.token_ids)


def test_params_are_for_all_or_one_each(llm: LLM) -> None:
    params = [SamplingParams(seed=s, max_tokens=4) for s in (1, 2)]
    both = llm.generate([PROMPT, PROMPT], params)
    assert [r.seed for r in both] == [1, 2]
    assert both[1].candidates == llm.generate(PROMPT, params[1]).candidates
    assert [len(r.token_ids) for r in llm.generate([PROMPT, PROMPT], params, max_tokens=3)] == [3, 3]
    with pytest.raises(ParameterError, match="3 prompts take one SamplingParams or 3, not 2"):
        llm.generate([PROMPT] * 3, params)
    with pytest.raises(ParameterError, match="one prompt takes one"):
        llm.generate(PROMPT, params)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        b"x",
        [1, "x"],
        [1, [2]],
        1.5,
        [True, False],
        np.array([1.5]),
        np.array(1),
        memoryview(b"x"),
        {"a": 1},
    ],
)
def test_what_is_no_prompt_is_refused(llm: LLM, bad: Any) -> None:
    with pytest.raises(ParameterError, match="prompt"):
        llm.generate(bad)


def test_what_cannot_be_honoured_is_refused_before_anything_is_computed(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="did you mean top_k"):
        llm.generate(PROMPT, topk=3)  # type: ignore[call-overload]
    with pytest.raises(ParameterError, match="did you mean top_k"):
        llm.stream(PROMPT, topk=3)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="empty"):
        llm.generate("")
    with pytest.raises(ParameterError, match="empty"):
        llm.generate([PROMPT, ""])
    with pytest.raises(ContextLengthError, match="max_tokens=600"):
        llm.stream(PROMPT, max_tokens=600)
    with pytest.raises(ParameterError, match="one prompt"):
        llm.stream([PROMPT, PROMPT])  # type: ignore[list-item]


def test_special_tokens_in_a_prompt_are_text(llm: LLM) -> None:
    assert llm.generate("<|im_end|>", max_tokens=1).usage.prompt_tokens > 1


def test_a_stream_is_the_result_in_pieces(llm: LLM) -> None:
    whole = llm.generate(PROMPT, seed=3, n=2, max_tokens=12, logprobs=2)
    chunks = list(llm.stream(PROMPT, seed=3, n=2, max_tokens=12, logprobs=2))
    for candidate in whole.candidates:
        mine = [chunk for chunk in chunks if chunk.index == candidate.index]
        assert "".join(str(chunk) for chunk in mine) == candidate.text
        assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens
    last = chunks[-1].generation
    assert last is not None
    assert last.candidates == whole.candidates
    assert all(chunk.generation is None for chunk in chunks[:-1])


def test_closing_a_stream_frees_everything(llm: LLM) -> None:
    chunks = llm.stream(PROMPT, max_tokens=50, ignore_eos=True)
    next(chunks)
    assert free_blocks(llm)[0] < free_blocks(llm)[1]
    chunks.close()
    assert free_blocks(llm)[0] == free_blocks(llm)[1]
    unread = llm.stream(PROMPT)
    assert free_blocks(llm)[0] == free_blocks(llm)[1]
    del unread


def test_threads_may_share_an_llm(llm: LLM) -> None:
    results: dict[int, Any] = {}

    def work(seed: int) -> None:
        results[seed] = llm.generate(PROMPT, seed=seed, n=2, max_tokens=20).candidates

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert results[seed] == llm.generate(PROMPT, seed=seed, n=2, max_tokens=20).candidates


def test_logits_are_the_same_as_those_drawn_from(llm: LLM) -> None:
    made = llm.generate(PROMPT, seed=2, max_tokens=80, ignore_eos=True)
    ids = llm.tokenizer.encode(PROMPT) + made.token_ids
    rows = llm.logits(ids)
    assert rows.shape == (len(ids), llm.spec.vocab_size)
    assert rows.dtype == np.float32
    shifted = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    law = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    start = len(ids) - len(made.token_ids)
    for at, token in enumerate(made.tokens, start):
        assert token.logprob == pytest.approx(law[at - 1, token.id], abs=1e-5)
    score = llm.score(ids)
    assert score.logprobs[0] is None
    assert score.logprobs[start:] == pytest.approx([t.logprob for t in made.tokens], abs=1e-5)
    assert score.count == len(ids) - 1
    assert score.perplexity == pytest.approx(np.exp(-score.total / score.count))
    assert "".join(llm.score(PROMPT).texts) == PROMPT


def test_a_sequence_may_fill_the_context(llm: LLM) -> None:
    assert len(llm.score([5] * 512).logprobs) == 512
    with pytest.raises(ContextLengthError, match="513 tokens"):
        llm.score([5] * 513)


def test_results_say_everything_as_json(llm: LLM) -> None:
    result = llm.generate(PROMPT, seed=3, n=2, max_tokens=4, logprobs=1, temperature=0).to_dict()
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again["text"] == again["candidates"][0]["text"]
    assert again["tokens"][0]["top_logprobs"][0]["id"] == again["token_ids"][0]
    assert again["usage"]["total_tokens"] == again["usage"]["prompt_tokens"] + 8
    assert again["seed"] == 3
    assert "candidates" not in llm.generate(PROMPT, max_tokens=1).to_dict()
    json.dumps(llm.score(PROMPT).to_dict(), allow_nan=False)


def test_a_chat_is_written_with_the_models_template(llm: LLM) -> None:
    ids = llm.tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    expected = llm.generate(ids, seed=1, max_tokens=5).candidates
    assert llm.chat("hi", seed=1, max_tokens=5).candidates == expected
    assert llm.chat([{"role": "user", "content": "hi"}], seed=1, max_tokens=5).candidates == expected
    assert "".join(c.text for c in llm.stream_chat("hi", seed=1, max_tokens=5)) == expected[0].text
    open_ended = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the"}]
    ids += llm.tokenizer.encode("the")
    continued = llm.chat(open_ended, seed=1, max_tokens=5, continue_final_message=True)
    assert continued.candidates == llm.generate(ids, seed=1, max_tokens=5).candidates
    for bad in ([], [{"content": "x"}], [{"role": "user"}], ["hi"], 5):
        with pytest.raises(ParameterError, match="message"):
            llm.chat(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [1, "yes", None])
def test_whether_to_continue_a_message_is_true_or_false(llm: LLM, bad: Any) -> None:
    with pytest.raises(ParameterError, match="continue_final_message must be True or False"):
        llm.chat("hi", continue_final_message=bad)
    with pytest.raises(ParameterError, match="continue_final_message must be True or False"):
        llm.stream_chat("hi", continue_final_message=bad)


def test_a_chat_past_the_context_drops_its_oldest_turns_and_says_so(llm: LLM) -> None:
    system = {"role": "system", "content": "s" * 20}
    turns = [{"role": r, "content": f"{i}" * 30} for i in range(9) for r in ("user", "assistant")]
    messages = [system, *turns, {"role": "user", "content": "now"}]
    made = llm.chat(messages, seed=1, max_tokens=50)
    assert made.dropped_messages > 0
    assert made.dropped_messages % 2 == 0
    kept = [system, *messages[1 + made.dropped_messages :]]
    same = llm.chat(kept, seed=1, max_tokens=50)
    assert same.dropped_messages == 0
    assert same.candidates == made.candidates
    longer = [system, *messages[made.dropped_messages - 1 :]]
    assert llm.chat(longer, seed=1, max_tokens=50).dropped_messages == 2
    last = list(llm.stream_chat(messages, max_tokens=50))[-1].generation
    assert last is not None
    assert last.dropped_messages == made.dropped_messages
    with pytest.raises(ContextLengthError, match="room"):
        llm.chat([*messages, {"role": "user", "content": "x" * 600}])


def test_turns_go_whole_and_the_system_stays() -> None:
    chat = [
        {"role": role, "content": str(i)}
        for i, role in enumerate(["system", *["user", "assistant"] * 2, "user"])
    ]
    shorter = shortened_chats(chat)
    assert [[m["content"] for m in c] for c in shorter] == [["0", "3", "4", "5"], ["0", "5"]]
    assert shortened_chats(chat[:2]) == []


def test_the_cache_is_sized_as_asked() -> None:
    spec = tiny_spec()
    per_block = 16 * spec.cache_bytes_per_token()
    assert cache_blocks(spec, None, None) == 32
    assert cache_blocks(spec, 33, None) == 3
    assert cache_blocks(spec, None, 5 * per_block + 1) == 5
    assert cache_blocks(spec, None, 4 * per_block, "float32") == 2
    assert cache_blocks(spec, None, 4 * per_block, "int8") == 4 * 2 * 16 // (16 + 2)  # heads of 16
    for bad in ((1, 1), (None, per_block - 1), (1.5, None), (True, None), (10**12, None), (0, None)):
        with pytest.raises(ParameterError, match="cache"):
            cache_blocks(spec, *bad)


def test_a_models_own_settings_are_its_defaults(llm: LLM) -> None:
    stated = {"general.sampling.temp": 0.0, "general.sampling.penalty_last_n": -1}
    for count, scope in ((-1, "all"), (64, 64)):
        made = model_settings({**stated, "general.sampling.penalty_last_n": count})
        scopes = dict(made["penalty_scope"])  # type: ignore[arg-type]  # pairs, of these rules alone
        assert scopes == dict.fromkeys(PENALTIES, scope)
        assert made["temperature"] == 0.0
    with pytest.raises(ModelFileError, match="temperature"):
        model_settings({"general.sampling.temp": -1.0})
    engine = llm.engine
    try:
        engine.settings = model_settings(stated)
        assert all(token.kept == 1 for token in llm.generate(PROMPT, max_tokens=5).tokens)
        assert all(token.kept > 1 for token in llm.generate(PROMPT, temperature=1, max_tokens=5).tokens)
    finally:
        engine.settings = {}


def test_a_closed_llm_says_so(tiny_path: Path) -> None:
    with LLM(tiny_path) as llm:
        stream = llm.stream(PROMPT, max_tokens=4)
    with pytest.raises(UnspoolError, match="closed"):
        llm.generate(PROMPT)
    assert list(stream)[-1].finish_reason is not None


def test_another_backend_may_compute_the_steps(tiny_path: Path) -> None:
    from tests.reference.llama import ReferenceBackend
    from unspool.model.loader import load

    loaded = load(tiny_path)
    reference = LLM.with_backend(loaded, ReferenceBackend(loaded.spec, random_weights(loaded.spec)))
    native = LLM(tiny_path)
    ids = native.tokenizer.encode(PROMPT)
    assert np.abs(reference.logits(ids) - native.logits(ids)).max() < 0.1


def test_public_names_are_there() -> None:
    for name in unspool.__all__:
        assert getattr(unspool, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = unspool.nothing


def test_scores_are_the_same_with_a_warm_cache(tiny_path: Path) -> None:
    text = list(range(3, 80))
    with LLM(tiny_path, threads=1) as warm, LLM(tiny_path, threads=1, prefix_cache=False) as cold:
        expected, rows = cold.score(text), cold.logits(text)
        for _ in range(2):
            assert warm.generate(text, max_tokens=2, seed=1).candidates
            assert warm.score(text) == expected
            assert warm.logits(text).tobytes() == rows.tobytes()
        assert warm.generate(text, max_tokens=2, seed=1).usage.cached_tokens == 64


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_a_cache_of_any_type_gives_the_same_text_however_it_is_filled(
    tiny_path: Path, cache_type: CacheType
) -> None:
    """Through the engine: preempted, in company, from the prefix cache; and the numbers know the type."""
    prompts = ["the inner other " * 4 + end for end in ("", "the", "there", "x")]
    settings: Settings = {"max_tokens": 40, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    with LLM(tiny_path, threads=1, cache_type=cache_type) as alone:
        expected = [alone.generate(prompt, **settings).token_ids for prompt in prompts]
        stats = alone.stats()
        assert stats.cache_type == cache_type
        assert stats.cache_bytes == stats.cache.blocks * 16 * alone.spec.cache_bytes_per_token(cache_type)
    with LLM(tiny_path, threads=2, cache_tokens=176, step_tokens=9, cache_type=cache_type) as small:
        for _ in range(2):
            assert [g.token_ids for g in small.generate(prompts, **settings)] == expected
        assert small.stats().preemptions > 0
        assert small.stats().hit_rate > 0


def test_a_type_that_is_none_is_refused_before_the_model_is_loaded(tiny_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"cache_type must be one of float16, .*, not 'half'"):
        LLM(tiny_path.with_name("missing.gguf"), cache_type="half")  # type: ignore[arg-type]
