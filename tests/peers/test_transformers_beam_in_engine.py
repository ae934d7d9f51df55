"""Beam search in the order of Transformers, from a prompt to a result, against that library's own.

Sums of log-probabilities are float32 there. Where two of them that a search chooses between are closer than
``NEAR``, a comparison ends before the token that they are of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.engine.making import SPEC, WEIGHTS, make_engine, run
from tests.peers.test_transformers import dequantized, transformers_llama
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import write_gguf
from tests.strategy.models import words
from tests.strategy.texts import Tokens, Toy, plain_beam
from unspool import LLM
from unspool.backend.base import Backend
from unspool.backend.cpu import CpuBackend
from unspool.model.loader import load
from unspool.params import SamplingParams
from unspool.results import Candidate
from unspool.strategy import Beam

torch: Any = pytest.importorskip("torch", reason="the oracle is in the extra `peers`")
transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")

NEAR = 1e-3
ENDS = (0, 2, *range(3, 266, 5))
"""Enough tokens that end a text for a random model to say some."""
PAD = 1
PROMPTS = [words(count, seed=count) for count in (1, 6, 23)]
PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]
STOPPING = [True, False, "never"]
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "a repetition penalty": {"repetition_penalty": 1.4},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "a least length": {"min_tokens": 5},
    "all of these": {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_tokens": 4},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Such small products are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Peer(Toy):
    """What a Transformers model and that library's own processors say after a prompt."""

    model: Any = None
    prompt: list[int] = field(default_factory=list)
    rules: dict[str, Any] = field(default_factory=dict)

    def law(self, tokens: Tokens) -> dict[int, float]:
        if tokens not in self.known:
            said = torch.tensor([[*self.prompt, *tokens]])
            with torch.no_grad():
                row = torch.log_softmax(self.model(said).logits[:, -1].float(), -1)
            for processor in self.processors():
                row = processor(said, row)
            kept = torch.topk(row[0], min(600, row.shape[-1]))
            laws = zip(kept.indices.tolist(), kept.values.double().tolist(), strict=True)
            self.known[tokens] = {token: value for token, value in laws if value > -math.inf}
        return self.known[tokens]

    def processors(self) -> Iterator[Any]:
        """As ``generate`` makes them."""
        if (penalty := self.rules.get("repetition_penalty")) is not None:
            yield transformers.RepetitionPenaltyLogitsProcessor(penalty)
        if (size := self.rules.get("no_repeat_ngram_size")) is not None:
            yield transformers.NoRepeatNGramLogitsProcessor(size)
        if (least := self.rules.get("min_tokens")) is not None:
            ends = sorted(self.ends)
            yield transformers.MinNewTokensLengthLogitsProcessor(len(self.prompt), least, ends, device="cpu")

    def clear_length(self, method: Beam, most: int) -> int:
        """The longest ``max_tokens`` up to ``most`` with which nothing is chosen by a hair."""
        for self.max_tokens in range(most, 0, -1):
            gaps = [math.inf]
            plain_beam(self, method.width, method.length_penalty, method.early_stopping, True, gaps)
            if min(gaps) > NEAR:
                break
        return self.max_tokens


def theirs(
    model: Any, prompts: Sequence[list[int]], ends: Sequence[int], method: Beam, length: int, rules: Any
) -> list[list[tuple[list[int], float]]]:
    """All results of each prompt, best first, as Transformers gives them for a batch padded on the left."""
    longest, width = max(map(len, prompts)), method.width
    names = {"min_tokens": "min_new_tokens"}
    made = model.generate(
        torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=length,
        length_penalty=method.length_penalty,
        early_stopping=method.early_stopping,
        eos_token_id=list(ends),
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **{names.get(name, name): value for name, value in rules.items()},
    )
    texts = [trimmed(row, ends) for row in made.sequences[:, longest:].tolist()]
    results = list(zip(texts, made.sequences_scores.tolist(), strict=True))
    return [results[at : at + width] for at in range(0, len(results), width)]


def trimmed(row: list[int], ends: Sequence[int]) -> list[int]:
    """Generated tokens up to the one that ended them, and without padding."""
    ended = next((at for at, token in enumerate(row) if token in ends), len(row))
    row = row[: ended + 1]
    while row and row[-1] == PAD:
        row.pop()
    return row


def asked(ends: Sequence[int], method: Beam, length: int, rules: Any) -> SamplingParams:
    return SamplingParams(
        order="transformers",
        strategy=method,
        n=method.width,
        max_tokens=length,
        stop_token_ids=ends,
        include_stop=True,
        **rules,
    )


def compare(ours: Sequence[Candidate], expected: Sequence[tuple[list[int], float]]) -> None:
    assert [candidate.token_ids for candidate in ours] == [tokens for tokens, _ in expected]
    assert [candidate.score for candidate in ours] == pytest.approx([s for _, s in expected], rel=1e-4)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return transformers_llama(SPEC, WEIGHTS)


def check(model: Any, method: Beam, rules: Any, most: int) -> int:
    """Compare what prompts of unequal length give, in one batch of ours. Returns how many tokens decided."""
    peers = [Peer(SPEC.vocab_size, most, frozenset(ENDS), model=model, prompt=p, rules=rules) for p in PROMPTS]
    lengths = [peer.clear_length(method, most) for peer in peers]
    engine = make_engine(ReferenceBackend(SPEC, WEIGHTS), 256)
    flights = [
        engine.submit(engine.prepare(prompt, asked(ENDS, method, length, rules)))
        for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    run(engine, flights)
    for flight, prompt, length in zip(flights, PROMPTS, lengths, strict=True):
        [expected] = theirs(model, [prompt], ENDS, method, length, rules)
        compare(flight.generation().candidates, expected)
    return sum(lengths)


@pytest.mark.parametrize("stopping", STOPPING)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("width", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_an_engine_gives_what_transformers_gives(
    tiny: Any, width: int, penalty: float, stopping: Any
) -> None:
    assert check(tiny, Beam(width, penalty, stopping), {}, 10) > 15


@pytest.mark.parametrize("width", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rules", list(RULES)[1:])
def test_rules_act_on_log_probabilities_as_in_transformers(tiny: Any, width: int, rules: str) -> None:
    stopping = STOPPING[len(rules) % 3]
    assert check(tiny, Beam(width, 0.6, stopping), RULES[rules], 10) > 15
