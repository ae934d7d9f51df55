"""Guidance, contrastive decoding and DoLa through the front door: each greedy text is a plain loop's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import unspool
from tests.reference.tiny import random_weights, tiny_spec, write_gguf
from tests.strategy.models import Alone, native
from unspool import ContrastiveDecoding, DoLa, ParameterError

PROMPT = [7, 31, 12, 90, 4]
Row = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[unspool.LLM]]:
    """Two models of one vocabulary."""
    folder, spec = tmp_path_factory.mktemp("models"), tiny_spec()
    paths: list[Path] = [
        write_gguf(folder / f"{seed}.gguf", spec, random_weights(spec, seed=seed)) for seed in (0, 1)
    ]
    made = [unspool.LLM(path, threads=1) for path in paths]
    yield made
    for llm in made:
        llm.close()


def log_softmax(row: npt.NDArray[np.floating[Any]]) -> Row:
    exact = row.astype(np.float64)
    logarithms: Row = exact - np.logaddexp.reduce(exact)
    return logarithms


def greedy(row: Callable[[list[int]], Row], count: int = 10) -> list[int]:
    """The most probable tokens, one by one; ``row`` is of what was generated."""
    made: list[int] = []
    for _ in range(count):
        made.append(int(np.argmax(row(made))))
    return made


def said(llm: unspool.LLM, prompt: Sequence[int] | str = PROMPT, **settings: Any) -> list[int]:
    return llm.generate(prompt, temperature=0, max_tokens=10, ignore_eos=True, **settings).token_ids


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5, 4.0])
@pytest.mark.parametrize("negative", [[40, 41, 42], None])
def test_guidance_leads_away_from_what_follows_the_negative_prompt(
    models: list[unspool.LLM], scale: float, negative: list[int] | None
) -> None:
    llm = models[0]

    def row(made: list[int]) -> Row:
        with_it, without = (
            log_softmax(llm.logits([*prompt, *made])[-1]) for prompt in (PROMPT, negative or PROMPT[-1:])
        )
        return without + scale * (with_it - without)

    expected = greedy(row)
    assert said(llm, guidance_scale=scale, negative_prompt=negative) == expected
    assert scale == 1 or expected != said(llm)


def test_a_scale_of_one_is_no_guidance_and_a_text_is_encoded(models: list[unspool.LLM]) -> None:
    llm = models[0]
    assert said(llm, guidance_scale=1, negative_prompt=[40]) == said(llm)
    text, ids = "the end", llm.tokenizer.encode("the end")
    assert said(llm, guidance_scale=3, negative_prompt=text) == said(
        llm, guidance_scale=3, negative_prompt=ids
    )
    chat = llm.chat("hello", guidance_scale=3, negative_prompt=text, temperature=0, max_tokens=8)
    assert chat.text != llm.chat("hello", temperature=0, max_tokens=8).text


@pytest.mark.parametrize(
    ("alpha", "beta", "temperature"),
    [(0.1, 0.5, 1.0), (0.0, 0.5, 1.0), (0.02, None, 1.0), (0.02, 2.0, 0.5), (1.0, 5.0, 1.0)],
)
def test_contrastive_decoding_is_its_formula(
    models: list[unspool.LLM], alpha: float, beta: float | None, temperature: float
) -> None:
    expert, amateur = models

    def row(made: list[int]) -> Row:
        better = log_softmax(expert.logits([*PROMPT, *made])[-1])
        worse = log_softmax(amateur.logits([*PROMPT, *made])[-1] / temperature)
        score = better - worse if beta is None else (1 + beta) * better - beta * worse
        return np.where(np.exp(better) >= alpha * np.exp(better).max() * (1 - 1e-6), score, -np.inf)

    source = ContrastiveDecoding(amateur, alpha, beta, temperature)
    assert said(expert, source=source) == greedy(row)
    if alpha == 1:  # the most probable token alone is left
        assert said(expert, source=source) == said(expert)


@pytest.mark.parametrize("layers", [[1], "low", "high"])
def test_dola_contrasts_with_the_layer_that_is_farthest(
    models: list[unspool.LLM], layers: str | list[int]
) -> None:
    source, depth, alone = DoLa(layers, alpha=0.05), models[0].spec.num_layers, Alone(native())
    exits = source.candidates(depth)

    def row(made: list[int]) -> Row:
        *premature, last = alone.rows([*PROMPT, *made], (*exits, depth))
        return contrast(premature, last)

    assert said(models[0], source=source) == greedy(row)


def contrast(premature: Sequence[npt.NDArray[np.float32]], last: npt.NDArray[np.float32]) -> Row:
    """Chuang et al. 2024, eq. 3 to 5, with alpha 0.05."""
    final = log_softmax(last)

    def divergence(row: npt.NDArray[np.float32]) -> float:
        law = log_softmax(row)
        middle = np.log((np.exp(final) + np.exp(law)) / 2)
        return float((np.exp(final) * (final - middle) + np.exp(law) * (law - middle)).sum() / 2)

    score = final - log_softmax(max(premature, key=divergence))
    return np.where(np.exp(final) >= 0.05 * np.exp(final).max() * (1 - 1e-6), score, -np.inf)


def test_of_several_layers_the_farthest_is_chosen_for_each_row() -> None:
    rng, chosen = np.random.default_rng(0), set()
    for _ in range(50):
        rows = rng.normal(0, 2, (4, 60)).astype(np.float32)
        expected = contrast(list(rows[:-1]), rows[-1])
        np.testing.assert_allclose(DoLa("low", 0.05).combine(rows), expected, atol=1e-5)
        alone = [contrast([rows[i]], rows[-1]) for i in range(3)]
        chosen.add(next(i for i in range(3) if np.array_equal(alone[i], expected)))
    assert chosen == {0, 1, 2}


@pytest.mark.parametrize(
    ("depth", "low", "high"),
    [
        (2, (1,), (1,)),
        (4, (2,), (2,)),
        (12, (2, 4), (6, 8, 10)),
        (30, (2, 4, 6, 8, 10, 12, 14), (15, 17, 19, 21, 23, 25, 27, 29)),
        (48, tuple(range(2, 20, 2)), tuple(range(28, 48, 2))),
    ],
)
def test_halves_of_the_layers_are_those_of_transformers(
    depth: int, low: tuple[int, ...], high: tuple[int, ...]
) -> None:
    """As ``_dola_decoding`` chose them in Transformers 4, where embeddings and head are one."""
    assert DoLa("low").candidates(depth) == low
    assert DoLa("high").candidates(depth) == high


def test_sources_go_with_searches_rules_and_selections(models: list[unspool.LLM]) -> None:
    expert, amateur = models
    source = ContrastiveDecoding(amateur)
    beam = expert.generate(PROMPT, strategy=unspool.Beam(3), source=source, max_tokens=6, ignore_eos=True)
    assert beam.candidates[0].score is not None
    chosen = expert.generate(PROMPT, select=unspool.BestOf(3), source=DoLa([1]), max_tokens=6, seed=1)
    assert chosen.choice is not None
    assert len(chosen.candidates) == 3
    unlike = said(expert, source=source, no_repeat_ngram_size=1)
    assert len(set(unlike)) == len(unlike)


def test_what_does_not_fit_is_refused_by_name(
    models: list[unspool.LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, amateur = models
    with pytest.raises(ParameterError, match="guidance_scale and source"):
        said(llm, guidance_scale=2, source=DoLa())
    with pytest.raises(ParameterError, match="negative_prompt is set, but guidance_scale is not"):
        said(llm, negative_prompt="x")
    with pytest.raises(ParameterError, match=r"layers=\(9,\): the model has \d+ layers"):
        said(llm, source=DoLa([9]))
    with pytest.raises(ParameterError, match="amateur must be"):
        ContrastiveDecoding("smollm2")  # type: ignore[arg-type]
    for wrong in ({"alpha": 1.5}, {"beta": -1}, {"temperature": 0}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            ContrastiveDecoding(amateur, **wrong)
    for layers in ("middle", [], [0], [1, 1], [1.5], 3):
        with pytest.raises(ParameterError, match="layers must be"):
            DoLa(layers)  # type: ignore[arg-type]
    monkeypatch.setattr(amateur.tokenizer, "id_to_token", str)
    with pytest.raises(ParameterError, match="different vocabularies"):
        said(llm, source=ContrastiveDecoding(amateur))
