"""The figures of a prompt's tokens: those of each row by itself, however many are read at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engine.making import TOKENIZER, generate, make_engine, read_rows
from tests.strategy.models import native
from unspool.backend.base import Float32Array, StepOutput
from unspool.backend.cpu import CpuBackend
from unspool.engine import timed_sampler
from unspool.engine.host import Host
from unspool.engine.prompt_figures import ROWS_AT_ONCE, PromptFigures
from unspool.engine.request import Request
from unspool.engine.row_sampler import RowSampler, output_of
from unspool.errors import RowError
from unspool.params import SamplingParams
from unspool.sampling.chain import ChainMemory
from unspool.sampling.plan import RowResults, SamplePlan
from unspool.sampling.rules import NoiseSource
from unspool.sampling.sampler import Law
from unspool.strategy import Figures

SHORT = [int(t) for t in np.random.default_rng(5).integers(3, 40, 49)]
PROMPT = [*SHORT, *SHORT[::-1], *SHORT[:25]]
"""123 tokens that come again and again."""
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "plain": {"temperature": 0.7, "top_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.01},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.4, "penalty_scope": "all"},
    "a window": {"repetition_penalty": 1.4, "presence_penalty": 0.4, "penalty_scope": 5},
    "DRY": {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": [[4], [5, 6]]},
    "n-grams": {"no_repeat_ngram_size": 3, "penalty_scope": "all"},
    "bad words": {"bad_words": [SHORT[:2], SHORT[4:5]], "min_tokens": 3},
    "mirostat": {"mirostat": 2, "mirostat_tau": 4.0},
    "adaptive-p": {"adaptive_target": 0.4},
    "own": {"logits_processors": [lambda ids, z: z - 0.01 * len(ids) * (np.arange(len(z)) % 7)], "top_k": 90},
}


class Calls:
    """A backend that counts the calls of its sampler."""

    def __init__(self) -> None:
        self.backend: CpuBackend = native()
        self.spec, self.max_step_tokens = self.backend.spec, self.backend.max_step_tokens
        self.samples = self.laws_made = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def sample(self, output: StepOutput, plan: SamplePlan) -> RowResults:
        self.samples += 1
        return self.backend.sample(output, plan)

    def laws(self, output: StepOutput, plan: SamplePlan) -> list[Law]:
        self.laws_made += 1
        return self.backend.laws(output, plan)


@cache
def rows() -> Float32Array:
    """[123, vocab_size] what follows each of the prompt's tokens."""
    return read_rows(make_engine(native()), PROMPT)


def request_of(**asked: Any) -> Request:
    return make_engine(native()).prepare(PROMPT, SamplingParams(seed=4, max_tokens=1, **asked))


def one_by_one(request: Request) -> list[Figures]:
    """The definition: each token's figures from its own row, with a memory of the tokens before it."""
    sampler, output = RowSampler(native(), Host()), output_of(rows())
    return [
        sampler.look(
            output,
            position - 1,
            request.chain,
            request.chain.memory(PROMPT[:position]),
            NoiseSource(request.key, position, 0),
            given=PROMPT[position],
            num_logprobs=request.params.prompt_logprobs or 0,
        )[1]
        for position in range(1, len(PROMPT))
    ]


def read(figures: PromptFigures, pieces: Sequence[int]) -> list[Figures]:
    """What comes of reading the rows in pieces of these sizes, and then the rest."""
    first = 0
    for size in (*pieces, len(PROMPT)):
        if first < len(PROMPT):
            figures.read(first, rows()[first : first + size])
        first += size
    return figures._figures


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("name", RULES)
def test_many_rows_at_once_give_each_its_own_figures(name: str, count: int) -> None:
    request = request_of(**RULES[name], prompt_logprobs=count)
    expected = one_by_one(request)
    assert len({figures.processed_logprob for figures in expected}) > 5
    for pieces in ([], [1], [64], [65], [63, 1, 1], [20] * 7, [122]):
        assert read(PromptFigures(request, RowSampler(native(), Host()), TOKENIZER), pieces) == expected


@pytest.mark.parametrize("name", RULES)
def test_a_read_takes_one_call_for_64_rows(name: str) -> None:
    backend = Calls()
    request = request_of(**RULES[name], prompt_logprobs=0)
    read(PromptFigures(request, RowSampler(backend, Host()), TOKENIZER), [100])
    if name == "own":
        assert (backend.samples, backend.laws_made) == (2 * 122, 122)
    else:
        assert (backend.samples, backend.laws_made) == (3, 0)
        assert ROWS_AT_ONCE == 64


@pytest.mark.parametrize("name", list(RULES)[2:])
@pytest.mark.parametrize("after", [0, 1, 30, 70])
def test_an_interrupt_in_a_memory_leaves_nothing_behind(
    name: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(**RULES[name], prompt_logprobs=1)
    figures, left = PromptFigures(request, RowSampler(native(), Host()), TOKENIZER), [after]
    figures.read(0, rows()[:10])

    def stopped(memory: ChainMemory, token: int) -> None:
        for each in memory.memories:
            if each is not None:
                each.precede(token)
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ChainMemory, "precede", stopped)
        with pytest.raises(KeyboardInterrupt):
            figures.read(10, rows()[10:])
    figures.read(10, rows()[10:])
    assert figures._figures == one_by_one(request)


def test_the_first_row_without_a_law_is_the_one_that_is_said() -> None:
    broken = rows().copy()
    broken[[70, 71, 90]] = np.nan
    figures = PromptFigures(request_of(top_k=3, prompt_logprobs=0), RowSampler(native(), Host()), TOKENIZER)
    with pytest.raises(RowError, match=r"token 71 of the prompt: .* NaN .*\(rules: top_k\)"):
        figures.read(0, broken)


def test_the_samplers_seconds_are_those_of_draws_and_of_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10**6))
    monkeypatch.setattr(timed_sampler, "perf_counter", lambda: float(next(times)))
    for asked, laws in (
        ({}, 0),
        ({"trace": True}, 5),
        (RULES["own"], 5),
        ({**RULES["own"], "logprobs": 1}, 15),
    ):
        backend = Calls()
        engine = make_engine(backend)
        made = generate(engine, SHORT, **{"top_k": 9, **asked}, max_tokens=5, ignore_eos=True)
        assert len(made.token_ids) == 5
        assert backend.laws_made == laws
        assert engine.stats().sample_seconds == backend.samples + backend.laws_made > 0
