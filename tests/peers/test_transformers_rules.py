"""Every rule that Transformers has, beside its logits processors: alone, and stacked as ``generate`` does.

Its sums are float32, so that a probability on a boundary falls on either side there; the rows here have none
so near but where a test says so. Where it has no rule for tied logits (``torch.topk``, and the sort of its
top-p on longer rows), what is compared are the kept probabilities and not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling.plans import after
from unspool.sampling.plan import Ties
from unspool.sampling.rules import (
    BadWords,
    Epsilon,
    Eta,
    LogitBias,
    MinimumTokens,
    MinP,
    NoRepeatNgram,
    RepetitionPenalty,
    Rule,
    Temperature,
    TopH,
    TopK,
    TopP,
    Typical,
)

torch: Any = pytest.importorskip("torch", reason="the oracle is in the extra `peers`")
transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")

Float32Array = npt.NDArray[np.float32]

PROMPT, OUTPUT = [3, 9, 3, 9, 5, 3], [9, 5, 1, 3, 9]
TOP_H = {"cap": 100, "summed": True}


def peer_rule(name: str, *values: Any, **more: Any) -> Any:
    return getattr(transformers, name)(*values, **more)


ALONE: list[tuple[Rule, Any]] = [
    *((Temperature(t), ("TemperatureLogitsWarper", t)) for t in (0.1, 0.7, 2.5)),
    *((TopK(k, Ties.ALL), ("TopKLogitsWarper", k)) for k in (1, 5, 40, 10_000)),
    *((TopP(p, Ties.HIGHEST_ID), ("TopPLogitsWarper", p)) for p in (0.0, 0.137, 0.5, 0.9, 0.987)),
    *((MinP(m), ("MinPLogitsWarper", m)) for m in (0.003, 0.05, 0.31)),
    *((Typical(t, Ties.ALL), ("TypicalLogitsWarper", t)) for t in (0.037, 0.2, 0.7, 0.953)),
    *((Epsilon(e), ("EpsilonLogitsWarper", e)) for e in (3e-4, 0.0101)),
    *((Eta(e), ("EtaLogitsWarper", e)) for e in (3e-4, 0.0101, 0.3)),
    *((TopH(a, **TOP_H), ("TopHLogitsWarper", a)) for a in (0.113, 0.437, 0.937)),  # type: ignore[arg-type]
    *((RepetitionPenalty(r, "all"), ("RepetitionPenaltyLogitsProcessor", r)) for r in (0.6, 1.3)),
    (RepetitionPenalty(1.3, "output"), ("RepetitionPenaltyLogitsProcessor", 1.3, len(PROMPT))),
    *((NoRepeatNgram(n, "all"), ("NoRepeatNGramLogitsProcessor", n)) for n in (1, 2, 3, 4, 20)),
    (
        BadWords(((7,), (9, 4), (3, 9, 0), (5, 9, 2), (1,) * 20)),
        ("NoBadWordsLogitsProcessor", [[7], [9, 4], [3, 9, 0], [5, 9, 2], [1] * 20]),
    ),
    (
        LogitBias(((2, 1.5), (11, -3.25), (4, -np.inf))),
        ("SequenceBiasLogitsProcessor", [[[2], 1.5], [[11], -3.25], [[4], -np.inf]]),
    ),
    (MinimumTokens(6, (2, 8)), ("MinNewTokensLengthLogitsProcessor", len(PROMPT), 6, [2, 8])),
    (MinimumTokens(5, (2, 8)), ("MinNewTokensLengthLogitsProcessor", len(PROMPT), 5, [2, 8])),
    (MinimumTokens(None, (2, 8)), ("SuppressTokensLogitsProcessor", [2, 8])),
]


def row_of(kind: str, rng: np.random.Generator, size: int = 200) -> Float32Array:
    normal = rng.standard_normal(size)
    rows = {
        "random": 2 * normal,
        "peaked": 2 * normal + 9 * (np.arange(size) == 12),
        "close": 0.1 * normal,
        "banned": np.where(rng.random(size) < 0.7, -np.inf, 2 * normal),
        "tied": np.round(1.5 * normal),
    }
    row: Float32Array = rows[kind].astype(np.float32)
    return row


def theirs(processor: Any, row: Float32Array) -> npt.NDArray[np.float64]:
    """[vocabulary] probabilities after a processor."""
    ids = torch.tensor([PROMPT + OUTPUT])
    scores = processor(ids, torch.from_numpy(row.copy())[None])
    probabilities: npt.NDArray[np.float64] = torch.softmax(scores[0].double(), -1).numpy()
    return probabilities


def ours(rules: Sequence[Rule], row: Float32Array) -> npt.NDArray[np.float64]:
    law = after(row, *rules, prompt=PROMPT, output=OUTPUT)
    probabilities = np.zeros(len(row))
    probabilities[law.ids] = law.probabilities
    return probabilities


def assert_same(got: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> None:
    assert (expected[got > 0] > 0).all()
    assert (got[expected > 1e-11] > 0).all()  # below 4.5e-13 fixed point has nothing
    np.testing.assert_allclose(got, expected, atol=1e-6)


NO_TIE_RULE = (TopH, TopP)


@pytest.mark.parametrize("kind", ["random", "peaked", "close", "banned", "tied"])
@pytest.mark.parametrize(("rule", "peer"), ALONE, ids=[str(rule) for rule, _ in ALONE])
def test_a_rule_alone(rule: Rule, peer: tuple[Any, ...], kind: str) -> None:
    rng = np.random.default_rng(17)
    for _ in range(5):
        row = row_of(kind, rng)
        got, expected = ours([rule], row), theirs(peer_rule(*peer), row)
        if kind == "tied" and isinstance(rule, NO_TIE_RULE):
            got, expected = np.sort(got), np.sort(expected)
        assert_same(got, expected)


def test_a_flat_row_is_kept_whole_or_cut_at_k() -> None:
    row = np.full(200, 0.75, np.float32)
    for rule, peer in ALONE:
        if isinstance(rule, TopP):
            continue  # every candidate is as near a boundary as its float32 sums are
        got, expected = ours([rule], row), theirs(peer_rule(*peer), row)
        if isinstance(rule, Epsilon) and rule.value > 1 / 200:
            # None qualifies: it keeps all that tie with the most probable, here one stays.
            assert np.flatnonzero(got).tolist() == [0]
            assert np.count_nonzero(expected) == 200
            continue
        assert_same(np.sort(got), np.sort(expected))


def test_top_p_takes_the_highest_of_tied_ids_on_short_rows() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        row = np.round(rng.standard_normal(14)).astype(np.float32)
        p = float(np.float32(rng.uniform(0.05, 0.95)))
        assert_same(ours([TopP(p, Ties.HIGHEST_ID)], row), theirs(peer_rule("TopPLogitsWarper", p), row))


@pytest.mark.parametrize(("probabilities", "p", "count"), [
    ([0.5, 0.5], 0.5, 1),
    ([0.5, 0.3, 0.2], 0.8, 2),
    ([0.4, 0.3, 0.2, 0.1], 0.7, 2),
    ([0.4, 0.3, 0.2, 0.1], 0.9, 3),
    ([1.0] * 7, 4 / 7, 4),  # it keeps 5: its sum of three is a rounding short of 3 / 7
    ([1.0] * 12, 5 / 12, 5),  # it keeps 6
])  # fmt: skip
def test_top_p_on_an_exact_tie_is_the_smallest_set_whatever_rounds_there(
    probabilities: list[float], p: float, count: int
) -> None:
    row = np.log(np.array(probabilities)).astype(np.float32)
    assert np.count_nonzero(ours([TopP(p, Ties.HIGHEST_ID)], row)) == count
    assert np.count_nonzero(theirs(peer_rule("TopPLogitsWarper", p), row) > 0) in (count, count + 1)


def test_min_p_on_the_exact_level_keeps_the_token_whatever_rounds_there() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04])).astype(np.float32)
    assert np.count_nonzero(ours([MinP(0.1)], row)) == 5
    assert np.count_nonzero(theirs(peer_rule("MinPLogitsWarper", 0.1), row) > 0) in (4, 5)


STACKS: list[tuple[dict[str, Any], list[Rule]]] = [
    (
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        [Temperature(0.8), TopK(20, Ties.ALL), TopP(0.9, Ties.HIGHEST_ID)],
    ),
    (
        {
            "sequence_bias": [[[5], 2.0], [[6], -1.5]],
            "repetition_penalty": 1.3,
            "no_repeat_ngram_size": 2,
            "bad_words_ids": [[7], [3, 4]],
            "min_new_tokens": 6,
            "suppress_tokens": [10, 11],
            "temperature": 1.4,
            "top_k": 30,
            "top_p": 0.95,
            "min_p": 0.02,
            "typical_p": 0.9,
            "epsilon_cutoff": 0.011,
            "eta_cutoff": 0.02,
        },
        [
            LogitBias(((5, 2.0), (6, -1.5))),
            RepetitionPenalty(1.3, "all"),
            NoRepeatNgram(2, "all"),
            BadWords(((7,), (3, 4))),
            MinimumTokens(6, (2,)),
            MinimumTokens(None, (10, 11)),
            Temperature(1.4),
            TopK(30, Ties.ALL),
            TopP(0.95, Ties.HIGHEST_ID),
            MinP(0.02),
            Typical(0.9, Ties.ALL),
            Epsilon(0.011),
            Eta(0.02),
        ],
    ),
    (
        {"repetition_penalty": 0.7, "temperature": 0.5, "top_h": 0.6, "top_k": 12, "min_p": 0.05},
        [
            RepetitionPenalty(0.7, "all"),
            Temperature(0.5),
            TopH(0.6, cap=100, summed=True),
            TopK(12, Ties.ALL),
            MinP(0.05),
        ],
    ),
]


def tiny_model() -> Any:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=150,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(("settings", "rules"), STACKS)
def test_a_stack_as_generate_runs_it(settings: dict[str, Any], rules: list[Rule]) -> None:
    model, prompt = tiny_model(), [1, 3, 4, 3, 9]
    for seed in range(4):
        torch.manual_seed(seed)
        made = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
            do_sample=True,
            max_new_tokens=12,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **{"top_k": 0, **settings},
        )
        output = made.sequences[0, len(prompt) :].tolist()
        assert len(output) >= 6
        for n, (raw, processed) in enumerate(zip(made.logits, made.scores, strict=True)):
            law = after(raw[0].float().numpy(), *rules, prompt=prompt, output=output[:n])
            got = np.zeros(150)
            got[law.ids] = law.probabilities
            assert_same(got, torch.softmax(processed[0].double(), -1).numpy())
