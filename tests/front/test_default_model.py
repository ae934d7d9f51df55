"""A small share of the promises on the real model: the same tokens, and sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unspool import LLM

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def llm(default_model_path: Path) -> Iterator[LLM]:
    with LLM(default_model_path) as made:
        yield made


def test_greedy_text_makes_sense(llm: LLM) -> None:
    assert llm.generate(PROMPT, temperature=0, max_tokens=4).text.startswith(" Paris")
    assert llm.generate(PROMPT, temperature=0, max_tokens=40, stop=".").text == " Paris"


def test_a_seed_fixes_the_text_whatever_shares_the_step(llm: LLM, default_model_path: Path) -> None:
    alone = llm.generate(PROMPT, seed=11, max_tokens=16)
    together = llm.generate(PROMPT, seed=11, max_tokens=16, n=3)
    assert together.candidates[0] == alone.candidates[0]
    assert len({candidate.text for candidate in together.candidates}) == 3
    with LLM(default_model_path, threads=1, cache_tokens=64, step_tokens=2) as other:
        assert other.generate(PROMPT, seed=11, max_tokens=16, n=3).candidates == together.candidates


def test_a_chat_ends_by_itself(llm: LLM) -> None:
    reply = llm.chat("What is the capital of France? Answer in one word.", temperature=0)
    assert "Paris" in reply.text
    assert reply.finish_reason == "stop"
    assert reply.stop_reason in llm.tokenizer.eos_ids


def test_scores_are_of_the_logits_drawn_from(llm: LLM) -> None:
    made = llm.generate(PROMPT, seed=2, max_tokens=8, ignore_eos=True)
    ids = llm.tokenizer.encode(PROMPT)
    scored = llm.score(ids + made.token_ids)
    drawn = [token.logprob for token in made.tokens]
    assert np.allclose(np.array(scored.logprobs[len(ids) :], dtype=float), drawn, atol=1e-4)
