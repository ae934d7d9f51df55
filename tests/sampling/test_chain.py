"""Settings to rules."""

from __future__ import annotations

from typing import Any

import pytest

from unspool.errors import ParameterError
from unspool.sampling.chain import Chain, compile_chain
from unspool.sampling.plan import RuleKind


def entries(chain: Chain) -> list[tuple[int, float]]:
    return list(zip(chain.kinds.tolist(), chain.values.tolist(), strict=True))


def test_the_default_order_is_repetition_temperature_min_p_top_k_top_p() -> None:
    chain = compile_chain(top_p=0.9, top_k=40, min_p=0.1, temperature=0.5, repetition_penalty=1.2)
    assert entries(chain) == [
        (RuleKind.REPETITION_PENALTY, 1.2),
        (RuleKind.TEMPERATURE, 0.5),
        (RuleKind.MIN_P, 0.1),
        (RuleKind.TOP_K, 40),
        (RuleKind.TOP_P, 0.9),
    ]


def test_the_order_is_the_callers() -> None:
    chain = compile_chain(min_p=0.1, temperature=0.5, order=("min_p", "temperature"))
    assert entries(chain) == [(RuleKind.MIN_P, 0.1), (RuleKind.TEMPERATURE, 0.5)]


def test_rules_that_are_off_compile_to_nothing() -> None:
    off = compile_chain(repetition_penalty=1, temperature=1, min_p=0, top_k=0, top_p=1)
    assert off == compile_chain() == Chain()
    assert entries(off) == []


def test_temperature_zero_is_top_k_one_in_its_place() -> None:
    assert entries(compile_chain(temperature=0, top_p=0.9)) == [(RuleKind.TOP_K, 1), (RuleKind.TOP_P, 0.9)]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-12}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"order": ("temperature", "warmth")}, "warmth"),
        ({"order": ("top_k", "top_k")}, "top_k"),
        ({"order": ("temperature",), "top_p": 0.9}, "top_p"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        compile_chain(**settings)
