"""Log-probabilities, of generated tokens and of prompts, and what each rule did: right, and never stale."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from unspool import LLM, AsyncLLM, Generation, ParameterError, PromptToken, RowError, SamplingParams, Token

Float64Array = npt.NDArray[np.float64]

PROMPT = "the inner other "
LONG = [*range(3, 90), 5, 9, 100, 3]
"""91 tokens: five whole blocks of the cache, and some."""
SETTINGS: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "seed": 6, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def cold(tiny_path: Path) -> Iterator[LLM]:
    """An LLM that shares nothing between requests."""
    with LLM(tiny_path, threads=1, prefix_cache=False) as made:
        yield made


def log_softmax(rows: npt.NDArray[np.float32]) -> Float64Array:
    """[t, vocabulary] natural log-probabilities, in float64."""
    z = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    law: Float64Array = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    return law


def processed(row: npt.NDArray[np.float32]) -> Float64Array:
    """[vocabulary] log-probabilities after ``SETTINGS``: a temperature of 0.7, the 0.8 of most mass."""
    law = log_softmax(row / np.float32(0.7))
    order = np.argsort(-law, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(np.exp(law[order])), 0.8)) + 1]
    out = np.full(len(law), -np.inf)
    out[kept] = law[kept] - np.log(np.exp(law[kept]).sum())
    return out


def check(token: Token | PromptToken, row: npt.NDArray[np.float32], best: int) -> None:
    """Compare a token's figures with the row that it follows, by their definitions."""
    raw, after = log_softmax(row), processed(row)
    assert token.logprob == pytest.approx(raw[token.id], abs=1e-5)
    assert token.processed_logprob == pytest.approx(after[token.id], abs=1e-5)
    assert token.rank == int((raw > raw[token.id]).sum())
    assert token.entropy == pytest.approx(-(np.exp(raw) * raw).sum(), abs=1e-5)
    assert token.kept == int((after > -np.inf).sum())
    assert [a.id for a in token.top_logprobs] == np.argsort(-raw, kind="stable")[:best].tolist()
    left = min(best, token.kept)
    assert [a.id for a in token.top_processed_logprobs] == np.argsort(-after, kind="stable")[:left].tolist()
    for listed in (*token.top_logprobs, *token.top_processed_logprobs):
        assert listed.logprob == pytest.approx(raw[listed.id], abs=1e-5)
        assert listed.processed_logprob == pytest.approx(after[listed.id], abs=1e-5)


@pytest.mark.parametrize("count", [0, 1, 5, 32])
def test_log_probabilities_are_reported_before_the_rules_and_after_them(llm: LLM, count: int) -> None:
    made = llm.generate(LONG, logprobs=count, **SETTINGS)
    rows = llm.logits(LONG + made.token_ids)[len(LONG) - 1 : -1]
    for token, row in zip(made.tokens, rows, strict=True):
        check(token, row, count)
        assert token.processed_logprob > -math.inf
    if count == 32:
        assert any(a.processed_logprob == -math.inf for t in made.tokens for a in t.top_logprobs)


def test_figures_are_of_the_models_row_and_of_the_law_beside_a_rule_of_ones_own(llm: LLM) -> None:
    def halve(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        logits[9] = 3.0  # which the bias has banned
        return logits * np.float32(0.5)

    favourite = int(llm.logits(PROMPT)[-1].argmax())
    bias = {9: -math.inf, favourite: -math.inf, 100: 3.0}
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 6, "ignore_eos": True}
    made = llm.generate(
        PROMPT, logits_processors=[halve], logit_bias=bias, top_k=12, logprobs=5, trace=True, **asked
    )
    ids = llm.tokenizer.encode(PROMPT)
    rows = llm.logits(ids + made.token_ids)[len(ids) - 1 : -1]
    for token, row in zip(made.tokens, rows, strict=True):
        raw, changed = log_softmax(row), row.copy()
        changed[100] += 3
        changed[favourite] = -np.inf
        changed[9] = 3
        order = np.argsort(-changed, kind="stable")
        after = np.full(len(row), -np.inf)
        after[order[:12]] = log_softmax(changed[order[:12]] * np.float32(0.5))
        assert token.logprob == pytest.approx(raw[token.id], abs=1e-5)
        assert token.processed_logprob == pytest.approx(after[token.id], abs=1e-5)
        assert token.entropy == pytest.approx(-(np.exp(raw) * raw).sum(), abs=1e-5)
        assert (token.rank, token.kept) == (int((raw > raw[token.id]).sum()), 12)
        assert [a.id for a in token.top_logprobs] == np.argsort(-raw, kind="stable")[:5].tolist()
        assert [a.id for a in token.top_processed_logprobs] == order[:5].tolist()
        for listed in (*token.top_logprobs, *token.top_processed_logprobs):
            assert listed.logprob == pytest.approx(raw[listed.id], abs=1e-5)
            assert listed.processed_logprob == pytest.approx(after[listed.id], abs=1e-5)
        assert [step.rule for step in token.trace] == ["logit_bias", "custom", "top_k"]
        assert token.trace[1].candidates == token.trace[1].candidates_before + 1  # it let one in again


def test_a_chat_reports_its_prompts_figures_too(llm: LLM) -> None:
    made = llm.chat("hi", prompt_logprobs=1, max_tokens=2)
    ids = llm.tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    assert [token.id for token in made.prompt_tokens] == ids
    assert [token.logprob for token in made.prompt_tokens] == pytest.approx(llm.score(ids).logprobs, abs=1e-5)


def test_tasks_get_every_figure_that_a_call_gets(llm: LLM) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 2, "logprobs": 2, "trace": True, **SETTINGS}

    async def ask(shared: AsyncLLM) -> Generation:
        chunks = [chunk async for chunk in shared.generate(LONG, **asked)]
        assert chunks[-1].generation is not None
        return chunks[-1].generation

    async def main() -> list[Generation]:
        async with AsyncLLM(llm) as shared:
            return list(await asyncio.gather(ask(shared), ask(shared)))

    alone = llm.generate(LONG, **asked)
    for made in asyncio.run(main()):
        assert prompts_figures(made) == alone.prompt_tokens
        assert made.candidates == alone.candidates


def test_alternatives_come_with_their_texts(llm: LLM) -> None:
    made = llm.generate(PROMPT, logprobs=32, top_k=40, max_tokens=3, seed=1)
    for token in made.tokens:
        for listed in (*token.top_logprobs, *token.top_processed_logprobs):
            assert listed.text == llm.tokenizer.token_bytes(listed.id).decode("utf-8", "replace")


@pytest.mark.parametrize("count", [0, 3, 32])
def test_a_prompts_tokens_have_the_figures_of_the_rows_before_them(llm: LLM, count: int) -> None:
    made = llm.generate(LONG, prompt_logprobs=count, **SETTINGS)
    rows = llm.logits(LONG)
    assert [token.id for token in made.prompt_tokens] == LONG
    first, *rest = made.prompt_tokens
    assert (first.logprob, first.processed_logprob, first.rank, first.entropy, first.kept) == (None,) * 5
    assert first.top_logprobs == first.top_processed_logprobs == ()
    for token, row in zip(rest, rows, strict=False):
        check(token, row, count)
    assert any(token.processed_logprob == -math.inf for token in rest)
    assert llm.generate(LONG, **SETTINGS).prompt_tokens == ()


def test_a_prompts_log_probabilities_are_its_score(llm: LLM) -> None:
    made = llm.generate(PROMPT, prompt_logprobs=0, max_tokens=1)
    score = llm.score(PROMPT)
    assert [token.logprob for token in made.prompt_tokens] == pytest.approx(score.logprobs, abs=1e-5)
    assert [token.text for token in made.prompt_tokens] == score.texts
    assert llm.generate([7], prompt_logprobs=4, max_tokens=1).prompt_tokens == (PromptToken(7, "\x04"),)


def test_penalties_see_a_prompts_tokens_as_if_it_ended_before_each(llm: LLM) -> None:
    made = llm.generate(
        PROMPT,
        prompt_logprobs=0,
        repetition_penalty=1.4,
        penalty_scope="all",
        bad_words=[[260]],
        max_tokens=1,
    )
    ids = llm.tokenizer.encode(PROMPT)
    rows = llm.logits(ids)
    for at, token in enumerate(made.prompt_tokens[1:], 1):
        row = rows[at - 1].copy()
        for said in set(ids[:at]):
            row[said] = row[said] / 1.4 if row[said] > 0 else row[said] * 1.4
        row[260] = -np.inf
        assert token.processed_logprob == pytest.approx(log_softmax(row)[token.id], abs=1e-5)
        assert token.kept == len(row) - 1
    given = llm.next_token(ids[:3], repetition_penalty=1.4, penalty_scope="all", bad_words=[[260]])
    assert made.prompt_tokens[3].processed_logprob == pytest.approx(
        math.log(given.probability(ids[3])), abs=1e-5
    )


def test_a_rule_of_ones_own_that_changes_nothing_changes_no_figure_of_a_prompt(llm: LLM) -> None:
    """With it, row follows row; without, many go at once."""
    asked: dict[str, Any] = {
        **SETTINGS,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.3,
        "dry_multiplier": 0.8,
        "penalty_scope": "all",
        "logprobs": 3,
    }
    prompt = LONG[30:] + LONG
    one = llm.generate(prompt, prompt_logprobs=3, **asked)
    same = llm.generate(prompt, prompt_logprobs=3, logits_processors=[lambda ids, z: z], **asked)
    assert len(one.prompt_tokens) == len(prompt)
    assert same.prompt_tokens == one.prompt_tokens
    assert same.candidates == one.candidates


def prompts_figures(made: Generation) -> tuple[PromptToken, ...]:
    assert len(made.prompt_tokens) == len(LONG)
    return made.prompt_tokens


def test_a_warm_prefix_cache_changes_no_figure_and_none_is_stale(tiny_path: Path, cold: LLM) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 3, "logprobs": 3, **SETTINGS}
    expected = cold.generate(LONG, **asked)
    with LLM(tiny_path, threads=1) as warm:
        warm.generate(LONG, max_tokens=2)
        for _ in range(2):
            made = warm.generate(LONG, **asked)
            assert prompts_figures(made) == expected.prompt_tokens
            assert made.candidates == expected.candidates
        plain = warm.generate(LONG, **{**asked, "prompt_logprobs": None})
        assert plain.usage.cached_tokens > 0
        assert plain.candidates == expected.candidates
        other = warm.generate(LONG, **{**asked, "temperature": 0.2})
        assert prompts_figures(other) != expected.prompt_tokens
        assert [t.logprob for t in other.prompt_tokens] == [t.logprob for t in expected.prompt_tokens]
        assert warm.next_token(LONG, top_k=4).to_dict() == cold.next_token(LONG, top_k=4).to_dict()


def test_chunks_of_a_prompt_change_no_figure(tiny_path: Path, cold: LLM) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 2, "logprobs": 2, "trace": True, **SETTINGS}
    expected = cold.generate(LONG, **asked)
    with LLM(tiny_path, threads=1, step_tokens=16) as chunked:
        for _ in range(2):
            made = chunked.generate(LONG, **asked)
            assert prompts_figures(made) == expected.prompt_tokens
            assert made.candidates == expected.candidates


def test_several_samples_share_their_prompts_figures(llm: LLM) -> None:
    one = llm.generate(LONG, prompt_logprobs=2, **SETTINGS)
    several = llm.generate(LONG, prompt_logprobs=2, n=4, **SETTINGS)
    assert prompts_figures(several) == one.prompt_tokens
    assert several.candidates[0] == one.candidates[0]


def test_a_stream_ends_with_the_prompts_figures(llm: LLM) -> None:
    whole = llm.generate(LONG, prompt_logprobs=2, n=2, **SETTINGS)
    last = list(llm.stream(LONG, prompt_logprobs=2, n=2, **SETTINGS))[-1].generation
    assert last is not None
    assert prompts_figures(last) == whole.prompt_tokens


def test_neighbours_and_preemption_change_no_figure(tiny_path: Path, cold: LLM) -> None:
    settings: dict[str, Any] = {
        **SETTINGS,
        "max_tokens": 60,
        "prompt_logprobs": 2,
        "logprobs": 1,
        "trace": True,
    }
    params = [SamplingParams(**{**settings, "seed": seed, "priority": seed}) for seed in range(4)]
    prompts = [LONG[seed:] for seed in range(4)]
    expected = [cold.generate(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    with LLM(tiny_path, threads=1, cache_tokens=256) as small:
        made = small.generate(prompts, params)
        assert sum(each.timing.preemptions for each in made) > 0
        for each, alone in zip(made, expected, strict=True):
            assert each.prompt_tokens == alone.prompt_tokens
            assert each.candidates == alone.candidates


def test_rules_that_leave_a_prompts_row_nothing_say_where(llm: LLM) -> None:
    with pytest.raises(
        RowError, match=r"token 2 of the prompt: .*no token left \(rules: no_repeat_ngram, bad_words, allowed"
    ):
        llm.generate(
            [3, 4, 5, 3, 4, 6],
            prompt_logprobs=0,
            allowed_token_ids=[3, 4, 5],
            no_repeat_ngram_size=1,
            penalty_scope=4,
            bad_words=[[3], [5]],
            max_tokens=1,
        )


def test_figures_past_a_stop_are_not_returned(llm: LLM) -> None:
    free = llm.generate(PROMPT, seed=4, max_tokens=30, ignore_eos=True, logprobs=1, trace=True)
    for at in range(3, 20):
        piece = free.tokens[at].text
        if piece and free.text.find(piece) == len("".join(t.text for t in free.tokens[:at])):
            break
    else:
        pytest.fail("no token's text comes first at its own place")
    cut = llm.generate(PROMPT, seed=4, max_tokens=30, ignore_eos=True, logprobs=1, trace=True, stop=piece)
    assert cut.text == free.text[: free.text.find(piece)]
    assert cut.tokens == free.tokens[:at]
    assert cut.logprob == pytest.approx(math.fsum(token.logprob for token in free.tokens[:at]))
    assert (cut.finish_reason, cut.stop_reason) == ("stop", piece)


def test_a_texts_log_probability_is_the_sum_of_its_tokens_and_perplexity_follows(llm: LLM) -> None:
    made = llm.generate(PROMPT, n=2, **SETTINGS)
    ids = llm.tokenizer.encode(PROMPT)
    for candidate in made.candidates:
        scored = llm.score(ids + candidate.token_ids).logprobs[len(ids) :]
        assert all(p is not None for p in scored)
        total = sum(p for p in scored if p is not None)
        assert candidate.logprob == pytest.approx(total, abs=1e-4)
        assert candidate.mean_logprob == pytest.approx(total / len(scored), abs=1e-5)
        assert candidate.perplexity == pytest.approx(math.exp(-total / len(scored)), rel=1e-4)
    first = made.candidates[0]
    assert (made.logprob, made.mean_logprob, made.perplexity) == (
        first.logprob,
        first.mean_logprob,
        first.perplexity,
    )
    printed = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert printed["logprob"] == made.logprob
    assert printed["candidates"][1]["perplexity"] == made.candidates[1].perplexity


def test_an_empty_text_has_no_mean(llm: LLM) -> None:
    made = llm.generate(PROMPT, logit_bias={0: 1e5}, max_tokens=3)
    assert made.tokens == []
    assert made.logprob == 0
    assert math.isnan(made.mean_logprob)
    assert math.isnan(made.perplexity)
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["perplexity"] is None


RULES: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.2,
    "dry_multiplier": 0.8,
    "no_repeat_ngram_size": 3,
    "bad_words": ["the"],
    "logit_bias": {100: 1.0, 7: -math.inf},
    "min_tokens": 4,
    "temperature": 0.8,
    "top_n_sigma": 3.0,
    "min_p": 0.01,
    "top_k": 60,
    "top_p": 0.95,
    "typical_p": 0.95,
    "top_a": 0.01,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.05,
}
NAMES = [
    *("repetition_penalty", "frequency_penalty", "dry", "no_repeat_ngram", "bad_words", "logit_bias"),
    *("minimum_tokens", "temperature", "top_n_sigma", "min_p", "top_k", "top_p", "typical_p", "top_a", "xtc"),
]


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({}, NAMES),
        ({"mirostat": 2}, [*NAMES, "mirostat"]),
        ({"adaptive_target": 0.3}, [*NAMES, "adaptive_p"]),
        ({"logits_processors": [lambda ids, z: z * 0.9]}, [*NAMES[:7], "custom", *NAMES[7:]]),
        ({"order": [*reversed(NAMES), "top_h"]}, [*reversed(NAMES)]),
    ],
    ids=["all", "mirostat", "adaptive-p", "own", "reversed"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_trace_has_each_rule_in_order_and_adds_up(
    llm: LLM, extra: dict[str, Any], names: list[str]
) -> None:
    asked: dict[str, Any] = {**RULES, **extra, "seed": 2, "max_tokens": 8}
    made = llm.generate(PROMPT, trace=True, **asked)
    for token in made.tokens:
        steps = token.trace
        assert [step.rule for step in steps] == names
        assert steps[0].candidates_before == llm.spec.vocab_size
        assert steps[0].entropy_before == pytest.approx(token.entropy, abs=1e-5)
        assert steps[-1].candidates == token.kept
        for step, following in pairwise(steps):
            assert step.candidates == following.candidates_before
            assert step.entropy == following.entropy_before
        for step in steps:
            assert 1 <= step.candidates <= step.candidates_before
            assert 0 <= step.threshold <= step.mass <= 1
            assert 0 < step.model_mass <= 1
            assert 1 - step.mass - 1e-9 <= step.shift <= 1
            assert step.mass == 1 or step.candidates < step.candidates_before
        masses = [step.model_mass for step in steps]
        assert masses == sorted(masses, reverse=True)
    assert made.to_dict()["tokens"][0]["trace"][0]["rule"] == names[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_trace_changes_no_figure(llm: LLM) -> None:
    for extra in (
        {},
        {"mirostat": 1},
        {"adaptive_target": 0.3},
        {"logits_processors": [lambda ids, z: z * 0.9]},
    ):
        asked: dict[str, Any] = {**RULES, **extra, "seed": 2, "max_tokens": 20, "logprobs": 3, "n": 2}
        traced, plain = llm.generate(PROMPT, trace=True, **asked), llm.generate(PROMPT, **asked)
        for one, other in zip(traced.candidates, plain.candidates, strict=True):
            assert one.text == other.text
            for token, untraced in zip(one.tokens, other.tokens, strict=True):
                assert untraced.trace == ()
                assert {**token_dict(token), "trace": ()} == token_dict(untraced)


def token_dict(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in Token.__slots__}


def test_a_trace_says_what_each_rule_kept(llm: LLM) -> None:
    law = llm.next_token(PROMPT, temperature=0.7, top_k=20, top_p=0.8)
    row = llm.logits(PROMPT)[-1]
    raw = np.exp(log_softmax(row))
    hot = np.exp(log_softmax(row / np.float32(0.7)))
    order = np.argsort(-hot, kind="stable")
    temperature, top_k, top_p = law.trace
    assert temperature.shift == pytest.approx(np.abs(hot - raw).sum() / 2, abs=1e-5)
    assert temperature.mass == pytest.approx(1)
    assert (top_k.candidates_before, top_k.candidates) == (len(row), 20)
    assert top_k.mass == pytest.approx(hot[order[:20]].sum(), abs=1e-5)
    assert top_k.threshold == pytest.approx(hot[order[19]], abs=1e-6)
    assert top_k.model_mass == pytest.approx(raw[order[:20]].sum(), abs=1e-5)
    assert top_k.shift == pytest.approx(1 - top_k.mass, abs=1e-5)
    assert top_p.mass >= 0.8
    assert top_p.mass - top_p.threshold < 0.8
    assert len(law) == top_p.candidates
    assert (law.entropy_before, law.entropy) == pytest.approx(
        (temperature.entropy_before, top_p.entropy), abs=1e-6
    )


def test_where_no_rule_is_on_there_is_no_trace(llm: LLM) -> None:
    assert llm.next_token(PROMPT).trace == ()
    assert all(token.trace == () for token in llm.generate(PROMPT, trace=True, max_tokens=3).tokens)


def test_figures_beyond_the_most_that_are_reported_are_refused(llm: LLM) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(ParameterError, match=rf"{name} must be a whole number from 0 to 32"):
            llm.generate(PROMPT, **{name: 33})  # type: ignore[call-overload]


def test_the_law_of_a_next_token_is_of_its_own_tenant(tiny_path: Path) -> None:
    prompt = list(range(40, 90))
    with LLM(tiny_path, threads=1) as own:
        own.next_token(prompt, cache_salt="a")
        assert own.generate(prompt, max_tokens=1).usage.cached_tokens == 0
        assert own.generate(prompt, max_tokens=1, cache_salt="a").usage.cached_tokens == 48
