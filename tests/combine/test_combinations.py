"""Guidance, contrastive decoding and DoLa, from an LLM on: what plain formulas over rows make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.reference import tiny
from tests.reference.tiny import make_tensors, random_weights, tiny_spec, write_gguf
from tests.strategy.models import Alone
from unspool import LLM, Beam, ContrastiveDecoding, DoLa, ParameterError, SamplingParams, Vote
from unspool.backend.cpu import CpuBackend
from unspool.combine import Guidance
from unspool.model.loader import load
from unspool.model.tensor import TensorType

Row = npt.NDArray[np.float64]
SPEC = tiny_spec(num_layers=5)
PROMPT, NEGATIVE = "the inner other", "another, then"
COUNT = 14


@dataclass
class Models:
    """Two models of a vocabulary, and what each says of sequences that are computed alone."""

    expert: LLM
    amateur: LLM
    alone: list[Alone]

    def row(self, ids: Sequence[int], model: int = 0, exits: Sequence[int] = (5,)) -> Row:
        """[exits, vocab_size] what follows."""
        return self.alone[model].rows(ids, exits).astype(np.float64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("combine")
    weights = [random_weights(SPEC, seed=seed) for seed in (3, 4)]
    paths = [write_gguf(folder / f"{at}.gguf", SPEC, w) for at, w in enumerate(weights)]
    alone = [Alone(CpuBackend(SPEC, make_tensors(w, TensorType.F32), threads=1)) for w in weights]
    with LLM(paths[0], threads=1, cache_tokens=4096) as expert, LLM(paths[1], threads=1) as amateur:
        yield Models(expert, amateur, alone)


def log_softmax(row: Row) -> Row:
    made: Row = row - np.logaddexp.reduce(row)
    return made


def plausible(row: Row, expert: Row, alpha: float) -> Row:
    """Li et al. 2022, eq. 2, of probabilities themselves."""
    p = np.exp(log_softmax(expert))
    return np.where(p < alpha * p.max(), -np.inf, row)


def check(llm: LLM, row: Callable[[list[int]], Row], **asked: Any) -> list[int]:
    """Greedy text and its log-probabilities are those of a plain loop, and the first token's whole law."""
    made = llm.generate(PROMPT, temperature=0, max_tokens=COUNT, ignore_eos=True, **asked)
    said: list[int] = []
    for token in made.tokens:
        expected = row(said)
        assert token.id == int(expected.argmax())
        assert token.logprob == pytest.approx(log_softmax(expected)[token.id], abs=1e-4)
        said.append(token.id)
    [first] = llm.generate(PROMPT, max_tokens=1, logprobs=32, ignore_eos=True, **asked).tokens
    expected = log_softmax(row([]))
    assert first.kept == np.count_nonzero(expected > -np.inf)
    for each in first.top_processed_logprobs:
        assert each.processed_logprob == pytest.approx(expected[each.id], abs=1e-4)
    assert len(first.top_processed_logprobs) == min(32, first.kept)
    return said


@pytest.mark.parametrize("scale", [1.7, 0.0, 6.5])
@pytest.mark.parametrize("negative", [None, NEGATIVE])
def test_guidance_is_u_plus_scale_times_c_less_u(models: Models, scale: float, negative: str | None) -> None:
    encode = models.expert.tokenizer.encode
    ids = encode(PROMPT)
    other = encode(negative) if negative else ids[-1:]

    def row(said: list[int]) -> Row:
        c, u = log_softmax(models.row([*ids, *said])[0]), log_softmax(models.row([*other, *said])[0])
        made: Row = u + scale * (c - u)
        return made

    said = check(models.expert, row, guidance_scale=scale, negative_prompt=negative)
    assert said == check(models.expert, row, source=Guidance(scale, other))
    plain = models.expert.generate(PROMPT, temperature=0, max_tokens=COUNT, ignore_eos=True)
    assert said != plain.token_ids


def test_guidance_of_scale_1_is_none(models: Models) -> None:
    asked: Any = {"seed": 3, "max_tokens": COUNT}
    plain = models.expert.generate(PROMPT, **asked)
    guided = models.expert.generate(PROMPT, guidance_scale=1.0, negative_prompt=NEGATIVE, **asked)
    assert guided.candidates == plain.candidates


@pytest.mark.parametrize(
    ("alpha", "beta", "temperature"),
    [(0.1, 0.5, 1.0), (0.0, 1.0, 1.0), (0.1, None, 1.0), (0.3, None, 0.5), (0.05, 0.7, 2.0), (1.0, 2.0, 1.0)],
)
def test_contrastive_decoding_is_its_formula(
    models: Models, alpha: float, beta: float | None, temperature: float
) -> None:
    ids = models.expert.tokenizer.encode(PROMPT)

    def row(said: list[int]) -> Row:
        expert, amateur = (models.row([*ids, *said], at)[0] for at in (0, 1))
        amateur = amateur / temperature
        if beta is None:
            contrast = log_softmax(expert) - log_softmax(amateur)
        else:
            contrast = (1 + beta) * expert - beta * amateur
        return plausible(contrast, expert, alpha)

    source = ContrastiveDecoding(models.amateur, alpha, beta, temperature)
    said = check(models.expert, row, source=source)
    if alpha == 1.0:  # the expert's best token alone is left
        greedy = models.expert.generate(PROMPT, temperature=0, max_tokens=COUNT, ignore_eos=True)
        assert said == greedy.token_ids


def jensen_shannon(p: Row, q: Row) -> float:
    """Half of what each is from their mean, in Kullback and Leibler's divergence."""
    m = (p + q) / 2
    return float((p * np.log(p / m)).sum() + (q * np.log(q / m)).sum()) / 2


@pytest.mark.parametrize("layers", ["low", "high", [1, 2, 3, 4], (3,)])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_dola_contrasts_the_last_layer_with_the_farthest_of_the_candidates(
    models: Models, layers: Any, alpha: float
) -> None:
    ids, chosen = models.expert.tokenizer.encode(PROMPT), set()
    exits = {"low": (2,), "high": (2, 4)}.get(layers) if isinstance(layers, str) else tuple(layers)
    assert exits is not None

    def row(said: list[int]) -> Row:
        laws = [log_softmax(row) for row in models.row([*ids, *said], 0, (*exits, 5))]
        last, early = laws[-1], laws[:-1]
        far = [jensen_shannon(np.exp(last), np.exp(law)) for law in early]
        chosen.add(int(np.argmax(far)))
        return plausible(last - early[int(np.argmax(far))], last, alpha)

    check(models.expert, row, source=DoLa(layers, alpha))
    if len(exits) == 4:
        assert len(chosen) > 1, "the choice is made for each token anew"


def layers_of_transformers(depth: int, which: str) -> list[int]:
    """As its DoLa took them, where the embeddings are tied and it takes any."""
    half, start = depth // 2, 2
    if which == "high":
        return list(range(half, depth, 2) if depth <= 40 else range(depth - 20, depth, 2))
    if start == half:
        return [start]
    return list(range(start, half, 2) if depth <= 40 else range(start, 20, 2))


@pytest.mark.parametrize("which", ["low", "high"])
def test_low_and_high_are_the_layers_that_transformers_takes(which: str) -> None:
    for depth in range(4, 90):
        assert list(DoLa(which).candidates(depth)) == layers_of_transformers(depth, which), depth
    for depth in (2, 3):
        assert DoLa(which).candidates(depth) == (1,)


def sources(models: Models) -> list[dict[str, Any]]:
    return [
        {"guidance_scale": 1.5, "negative_prompt": NEGATIVE},
        {"source": ContrastiveDecoding(models.amateur)},
        {"source": DoLa("high")},
    ]


def test_combinations_go_with_searches_selections_and_each_other_in_one_batch(models: Models) -> None:
    ways: list[dict[str, Any]] = [
        {"strategy": Beam(3), "n": 2},
        {"select": Vote(4, lambda text: text[:1])},
        {"seed": 4, "top_p": 0.8, "n": 2},
    ]
    every = [{**source, **way, "max_tokens": 8, "seed": 1} for source in sources(models) for way in ways]
    llm = models.expert
    alone = [llm.generate(PROMPT, **asked) for asked in every]
    together = llm.generate([PROMPT] * len(every), [SamplingParams(**asked) for asked in every])
    for made, expected in zip(together, alone, strict=True):
        assert made.candidates == expected.candidates
        assert made.choice == expected.choice
    for asked, expected in zip(every, alone, strict=True):
        streamed = "".join(c.text for c in llm.stream(PROMPT, **asked) if c.index == 0)
        assert streamed == expected.text
    texts = [made.text for made in alone]
    assert len({*texts[::3]}) == 3, "the sources matter"


def test_what_does_not_fit_is_refused_by_name(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = models.expert
    for asked, said in (
        ({"guidance_scale": 1.5, "source": DoLa()}, "guidance_scale and source"),
        ({"source": DoLa([5])}, r"layers=\(5,\).*5 layers.* 1 to 4"),
        ({"source": DoLa([1, 9])}, "5 layers"),
        ({"source": DoLa(), "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"guidance_scale": 1.5, "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"source": "dola"}, "source"),
    ):
        with pytest.raises(ParameterError, match=said):
            llm.generate(PROMPT, **asked)
    for make, said in (
        (lambda: DoLa("middle"), "layers"),
        (lambda: DoLa([]), "layers"),
        (lambda: DoLa([0]), "layers"),
        (lambda: DoLa([2, 2]), "layers"),
        (lambda: DoLa(alpha=1.5), "alpha"),
        (lambda: ContrastiveDecoding(llm, alpha=-0.1), "alpha"),
        (lambda: ContrastiveDecoding(llm, beta=float("nan")), "beta"),
        (lambda: ContrastiveDecoding(llm, temperature=0), "temperature"),
        (lambda: ContrastiveDecoding("smollm2"), "amateur"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ParameterError, match=said):
            make()
    for asked in sources(models):
        with pytest.raises(ParameterError, match="guidance_scale and source"):
            llm.next_token(PROMPT, **asked)
    made = load(models.amateur.path)
    bare = LLM.with_backend(made, CpuBackend(made.spec, made.tensors, threads=1))
    with pytest.raises(ParameterError, match="with_backend"):
        llm.generate(PROMPT, source=ContrastiveDecoding(bare))
    monkeypatch.setattr(tiny, "SPECIALS", ["<|endoftext|>", "<|im_start|>", "<|other|>"])
    path = write_gguf(tmp_path / "other.gguf", SPEC, random_weights(SPEC))
    with LLM(path, threads=1) as other, pytest.raises(ParameterError, match="different vocabularies"):
        llm.generate(PROMPT, source=ContrastiveDecoding(other))
