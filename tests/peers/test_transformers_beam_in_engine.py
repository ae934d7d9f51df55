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

from tests.engine.making import SPEC, WEIGHTS
from tests.peers.test_transformers import dequantized, transformers_llama
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import write_gguf
from tests.strategy.models import words
from tests.strategy.texts import Tokens, Toy, plain_beam
from unspool import LLM
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
STOPPING: list[Any] = [True, False, "never"]
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
    rows: dict[Tokens, Any] = field(default_factory=dict)
    """Log-probabilities after prompt and text, whatever the rules."""

    def law(self, tokens: Tokens) -> dict[int, float]:
        if tokens not in self.known:
            said = torch.tensor([[*self.prompt, *tokens]])
            key = (*self.prompt, *tokens)
            if key not in self.rows:
                with torch.no_grad():
                    self.rows[key] = torch.log_softmax(self.model(said).logits[:, -1].float(), -1)
            row = self.rows[key].clone()
            for processor in self.processors():
                row = processor(said, row)
            kept = torch.topk(row[0], min(400, row.shape[-1]))
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


def returned(method: Beam) -> int:
    """How many results: also fewer than beams, of which it keeps as many all the same."""
    return 1 if method.early_stopping == "never" else method.width


def theirs(
    model: Any, prompts: Sequence[list[int]], ends: Sequence[int], method: Beam, length: int, rules: Any
) -> list[list[tuple[list[int], float]]]:
    """The results of each prompt, best first, as Transformers gives them for a batch padded on the left."""
    longest, width, results = max(map(len, prompts)), method.width, returned(method)
    names = {"min_tokens": "min_new_tokens"}
    made = model.generate(
        torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
        num_beams=width,
        num_return_sequences=results,
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
    every = list(zip(texts, made.sequences_scores.tolist(), strict=True))
    return [every[at : at + results] for at in range(0, len(every), results)]


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
        n=returned(method),
        max_tokens=length,
        stop_token_ids=ends,
        include_stop=True,
        **rules,
    )


def compare(ours: Sequence[Candidate], expected: Sequence[tuple[list[int], float]]) -> None:
    assert [candidate.token_ids for candidate in ours] == [tokens for tokens, _ in expected]
    scores = [score for _, score in expected]
    assert [candidate.score for candidate in ours] == pytest.approx(scores, rel=1e-4)


@dataclass
class Pair:
    """A model as Transformers has it and as ``unspool`` has it, and a few prompts."""

    model: Any
    llm: LLM
    prompts: list[list[int]]
    ends: tuple[int, ...]
    rows: dict[Tokens, Any] = field(default_factory=dict)

    def peer(self, prompt: list[int], most: int, rules: Any) -> Peer:
        others: Any = {"model": self.model, "prompt": prompt, "rules": rules, "rows": self.rows}
        return Peer(self.llm.spec.vocab_size, most, frozenset(self.ends), **others)

    def check(self, method: Beam, most: int, rules: Any) -> int:
        """Compare what the prompts give, together here. Returns how many steps were compared."""
        lengths = [self.peer(prompt, most, rules).clear_length(method, most) for prompt in self.prompts]
        made = self.llm.generate(
            self.prompts, [asked(self.ends, method, length, rules) for length in lengths]
        )
        for each, prompt, length in zip(made, self.prompts, lengths, strict=True):
            [expected] = theirs(self.model, [prompt], self.ends, method, length, rules)
            compare(each.candidates, expected)
        return sum(lengths)

    def check_padded(self, method: Beam, most: int) -> int:
        """Compare what the prompts give, together there too, where the shorter ones are padded."""
        peers, length = [self.peer(prompt, most, {}) for prompt in self.prompts], most
        while (clear := min(peer.clear_length(method, length) for peer in peers)) < length:
            length = clear
        made = self.llm.generate(self.prompts, asked(self.ends, method, length, {}))
        for each, expected in zip(
            made, theirs(self.model, self.prompts, self.ends, method, length, {}), strict=True
        ):
            compare(each.candidates, expected)
        return length


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("beam") / "tiny.gguf", SPEC, WEIGHTS)


@pytest.fixture(scope="module")
def exact(tiny_path: Path) -> Pair:
    """The tiny model in double precision."""
    llm = LLM.with_backend(load(tiny_path), ReferenceBackend(SPEC, WEIGHTS), cache_tokens=2048)
    return Pair(transformers_llama(SPEC, WEIGHTS), llm, PROMPTS, ENDS)


@pytest.fixture(scope="module")
def native(tiny_path: Path) -> Pair:
    """The tiny model as it is run, with a cache that rounds nothing."""
    prompts = [words(count, seed=count) for count in range(3, 40, 5)]
    llm = LLM(tiny_path, threads=1, cache_tokens=2048, cache_type="float32")
    return Pair(transformers_llama(SPEC, WEIGHTS), llm, prompts, ENDS)


TWO, FOUR, EIGHT = (pytest.param(width, marks=pytest.mark.slow) for width in (2, 4, 8))


@pytest.mark.parametrize("stopping", STOPPING)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("width", [TWO, 4, EIGHT])
def test_an_engine_gives_what_transformers_gives(
    exact: Pair, width: int, penalty: float, stopping: Any
) -> None:
    assert exact.check(Beam(width, penalty, stopping), 8, {}) > 12


@pytest.mark.parametrize("width", [2, FOUR, EIGHT])
@pytest.mark.parametrize("rules", list(RULES)[1:])
def test_rules_act_on_log_probabilities_as_in_transformers(exact: Pair, width: int, rules: str) -> None:
    stopping: Any = STOPPING[len(rules) % 3]
    assert exact.check(Beam(width, 0.6, stopping), 9, RULES[rules]) > 12


@pytest.mark.parametrize(
    ("penalty", "stopping"), [(1.0, False), (0.0, True), (-1.0, "never"), (2.0, "never")]
)
def test_a_padded_batch_there_is_a_batch_of_any_lengths_here(
    exact: Pair, penalty: float, stopping: Any
) -> None:
    """No score divides by, and no bound counts, what a prompt or its padding has (Transformers 25455)."""
    assert exact.check_padded(Beam(3, penalty, stopping), 9) > 3


@pytest.mark.parametrize("stopping", STOPPING)
@pytest.mark.parametrize("width", [2, FOUR, EIGHT])
def test_a_file_of_float32_weights_gives_what_transformers_gives(
    native: Pair, width: int, stopping: Any
) -> None:
    assert native.check(Beam(width, 1.0, stopping), 6, {}) > 9


TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old man who",
    "def add(a, b):",
]


@pytest.fixture(scope="module")
def large(default_model_path: Path) -> Pair:
    """The default model, its weights as float32."""
    loaded, weights = load(default_model_path), dequantized(default_model_path)
    llm = LLM.with_backend(loaded, ReferenceBackend(loaded.spec, weights, dtype="float32"), cache_tokens=4096)
    prompts = [llm.tokenizer.encode(text) for text in TEXTS]
    full_stops = [token for mark in (".", "\n") for token in llm.tokenizer.encode(mark, add_special=False)]
    ends = tuple(sorted({*llm.tokenizer.eos_ids, *full_stops}))
    return Pair(transformers_llama(loaded.spec, weights), llm, prompts, ends)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "penalty", "stopping", "rules"),
    [
        (2, 1.0, False, "none"),
        (2, 0.0, "never", "a repetition penalty"),
        (4, 1.0, True, "none"),
        (4, 0.6, False, "no repeated pairs"),
        (4, -1.0, False, "none"),
        (4, 2.0, "never", "all of these"),
        (8, 1.0, False, "a least length"),
    ],
)
def test_the_default_model_gives_what_transformers_gives(
    large: Pair, width: int, penalty: float, stopping: Any, rules: str
) -> None:
    assert large.check(Beam(width, penalty, stopping), 12, RULES[rules]) > 15


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_gives_what_transformers_gives_for_a_padded_batch(large: Pair) -> None:
    assert large.check_padded(Beam(3), 10) > 3
