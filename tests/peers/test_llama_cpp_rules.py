"""Every rule that llama.cpp has, beside what its samplers made of the same rows (``tests/golden``).

It sorts without a rule for tied logits, so that on rows with ties the kept probabilities are compared, and
not whose they are. Its top-p and typical add float32 probabilities; no row here has one on the boundary.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.llama_cpp_cases import Case, cases
from tests.sampling.plans import UNMOVED, Asked, plan_of
from unspool.sampling.chain import Chain
from unspool.sampling.distribution import Distribution
from unspool.sampling.plan import DRAW, RowStatus
from unspool.sampling.rules import (
    AdaptiveP,
    Dry,
    DynamicTemperature,
    Facts,
    FrequencyPenalty,
    LogitBias,
    MinP,
    Mirostat,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Witness,
    Xtc,
)
from unspool.sampling.sampler import laws, sample

CASES = {case.name: case for case in cases()}


@cache
def golden() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "golden" / "llama_cpp.json.gz"
    read: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return read


def penalties(last: int, repetition: float, frequency: float, presence: float) -> list[Rule]:
    return [
        RepetitionPenalty(repetition, last),
        FrequencyPenalty(frequency, last),
        PresencePenalty(presence, last),
    ]


def temperature(t: float, reach: float = 0.0, exponent: float = 1.0) -> list[Rule]:
    if reach:
        return [DynamicTemperature(max(0.0, t - reach), t + reach, exponent)]
    return [Temperature(t) if t else TopK(1)]


def dry(multiplier: float, base: float, allowed: int, last: int) -> list[Rule]:
    return [Dry(multiplier, base, allowed, tuple(map(tuple, golden()["breakers"])), last)]


OURS: dict[str, Callable[..., list[Rule]]] = {
    "top_k": lambda k: [TopK(k)],
    "top_p": lambda p: [TopP(p)],
    "min_p": lambda p: [MinP(p)],
    "typical": lambda p: [Typical(p)],
    "top_n_sigma": lambda n: [TopNSigma(n)],
    "temp": temperature,
    "temp_ext": temperature,
    "xtc": lambda probability, threshold: [Xtc(probability, threshold)],
    "penalties": penalties,
    "dry": dry,
    "logit_bias": lambda biases: [LogitBias(biases)],
    "mirostat": lambda tau, eta, _: [Witness(), Mirostat(1, tau, eta, renormalized=True)],
    "mirostat_v2": lambda tau, eta: [Witness(), Mirostat(2, tau, eta, renormalized=True)],
    "adaptive_p": lambda target, decay: [Witness(), AdaptiveP(target, decay)],
}
"""What a sampler of llama.cpp is called here."""


def run(case: Case, drawn: Iterable[int | None]) -> list[Distribution]:
    """The law of each row, and on to the next with the token that llama.cpp drew."""
    chain = Chain(tuple(rule for sampler in case.samplers for rule in OURS[sampler[0]](*sampler[1])))
    memory = chain.memory([])
    if memory is not None:
        for said in case.history(golden()["alphabet"]):
            if not any(isinstance(rule, (Mirostat, AdaptiveP)) for rule in chain.rules):
                memory.extend(said, UNMOVED)
    made = []
    for row, token in zip(case.logits(), drawn, strict=True):
        plan = plan_of([Asked(chain, memory, given=DRAW if token is None else token)])
        ((status, ids, logits),) = laws(row[None], plan)
        assert status == RowStatus.OK
        made.append(Distribution.of(ids, logits))
        if token is not None and memory is not None:
            results = sample(row[None], plan)
            memory.extend(token, Facts(results.surprises[0], -results.processed_logprobs[0]))
    return made


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_keeps_the_same_with_the_same_probabilities(name: str) -> None:
    expected = golden()["cases"][name]
    laws_of_rows = run(CASES[name], [row.get("token") for row in expected])
    # Adaptive-p has logits 33 times as steep as its float32 running mean is wrong.
    most = 3e-6 if name.startswith("adaptive_p") else 1e-6
    for law, row in zip(laws_of_rows, expected, strict=True):
        got = dict(zip(law.ids.tolist(), law.probabilities.tolist(), strict=True))
        theirs = dict(zip(row["ids"], row["probabilities"], strict=True))
        if CASES[name].kind == "tied":
            assert len(got) == len(theirs)
            np.testing.assert_allclose(sorted(got.values()), sorted(theirs.values()), atol=most)
        else:
            assert set(got) == set(theirs)
            assert got == pytest.approx(theirs, abs=most)


def test_every_case_has_its_golden_results_and_some_are_cut() -> None:
    assert set(golden()["cases"]) == set(CASES)
    assert golden()["made_with"]["llama_cpp_python"]
    for sampler in {name.split()[0] for name in CASES}:
        of_sampler = [name for name in CASES if name.split()[0] == sampler]
        different = [
            name
            for name in of_sampler
            for row, logits in zip(golden()["cases"][name], CASES[name].logits(), strict=True)
            if len(row["ids"]) < len(logits)
            or abs(np.exp(logits[0] - np.logaddexp.reduce(logits)) - row["probabilities"][0]) > 1e-6
        ]
        assert different, sampler
