"""Contrastive search against its definition, written plainly over a reference's hidden states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.engine.making import SPEC, generate, make_engine, run, stream
from tests.strategy.models import native
from unspool.backend.base import StepBatch
from unspool.errors import ParameterError
from unspool.params import SamplingParams
from unspool.strategy import Contrastive

PROMPT = [7, 31, 12, 90, 4]


def array(values: object) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def computed(ids: list[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """[T, vocab_size] log-probabilities and [T, hidden_size] hidden states of a sequence computed whole."""
    backend, count = native(), len(ids)
    backend.allocate(8)
    step = StepBatch(
        tokens=array(ids),
        positions=array(range(count)),
        slots=array(range(count)),
        parents=array(range(-1, count - 1)),
        run_starts=array([0, count]),
        block_table=array([list(range(8))]),
        context_lens=array([0]),
        rows=array(range(count)),
        hidden_rows=array(range(count)),
    )
    output = backend.forward(step)
    rows = output.logits.numpy().astype(np.float64)
    return rows - np.logaddexp.reduce(rows, axis=1, keepdims=True), output.hidden.astype(np.float64)


def plain_search(prompt: list[int], k: int, alpha: float, tokens: int) -> list[int]:
    """Su et al. 2022, eq. 5, candidate by candidate."""
    ids = list(prompt)
    for _ in range(tokens):
        law = computed(ids)[0][-1]
        values = {}
        for token in np.argsort(-law, kind="stable")[:k].tolist():
            states = computed([*ids, token])[1]
            states /= np.linalg.norm(states, axis=1, keepdims=True)
            values[token] = (1 - alpha) * np.exp(law[token]) - alpha * (states[:-1] @ states[-1]).max()
        ids.append(max(values, key=lambda token: values[token]))
    return ids[len(prompt) :]


@pytest.mark.parametrize(("k", "alpha"), [(1, 0.6), (4, 0.6), (7, 0.9), (5, 0.0)])
def test_it_is_its_definition(k: int, alpha: float) -> None:
    engine = make_engine(native())
    made = generate(engine, PROMPT, strategy=Contrastive(k, alpha), max_tokens=12, ignore_eos=True)
    assert made.token_ids == plain_search(PROMPT, k, alpha, 12)
    assert len(made.candidates) == 1


def test_the_penalty_matters_and_without_it_the_search_is_greedy() -> None:
    asked: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    engine = make_engine(native())
    greedy = generate(engine, PROMPT, temperature=0, **asked)
    assert generate(engine, PROMPT, strategy=Contrastive(6, 0.0), **asked).token_ids == greedy.token_ids
    assert generate(engine, PROMPT, strategy=Contrastive(6, 0.9), **asked).token_ids != greedy.token_ids


def test_it_is_the_same_on_a_warm_cache_beside_others_preempted_and_streamed() -> None:
    asked: dict[str, Any] = {"strategy": Contrastive(4, 0.6), "max_tokens": 20, "ignore_eos": True}
    prompt = [*PROMPT, *range(20, 60)]
    alone = generate(make_engine(native()), prompt, **asked)
    engine = make_engine(native())
    generate(engine, prompt, max_tokens=3)
    assert generate(engine, prompt, **asked).tokens == alone.tokens
    chunks = stream(engine, prompt, **asked)
    assert "".join(chunk.text for chunk in chunks) == alone.text
    assert len(chunks) > 10
    small = make_engine(native(), num_blocks=14, step_tokens=24)
    flights = [
        small.submit(small.prepare(prompt, SamplingParams(**own)))
        for own in (
            *({"max_tokens": 60, "seed": i, "ignore_eos": True, "temperature": 1.0} for i in range(3)),
            asked,
        )
    ]
    run(small, flights)
    assert flights[-1].generation().tokens == alone.tokens
    assert small.scheduler.preemptions > 0
    assert SPEC.hidden_size == 64


def test_rules_and_stops_hold() -> None:
    engine = make_engine(native())
    asked: dict[str, Any] = {"strategy": Contrastive(4, 0.6), "max_tokens": 30}
    made = generate(engine, PROMPT, no_repeat_ngram_size=1, ignore_eos=True, **asked)
    assert len(set(made.token_ids)) == len(made.token_ids)
    again = generate(engine, PROMPT, stop_token_ids=[made.token_ids[3]], no_repeat_ngram_size=1, **asked)
    assert again.token_ids == made.token_ids[:3]
    assert again.stop_reason == made.token_ids[3]


def test_more_than_one_result_and_values_out_of_range_are_refused() -> None:
    with pytest.raises(ParameterError, match="one result"):
        generate(make_engine(native()), PROMPT, strategy=Contrastive(), n=2)
    for wrong in ({"k": 0}, {"k": 257}, {"alpha": -0.1}, {"alpha": float("nan")}, {"alpha": 1.1}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            Contrastive(**wrong)
