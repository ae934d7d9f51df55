"""A setting that cannot be honoured is refused with its name, what was given and what is allowed."""

from __future__ import annotations

import copy
from dataclasses import fields
from decimal import Decimal
from typing import Any, get_type_hints

import numpy as np
import pytest

from unspool import ParameterError, SamplingParams
from unspool.errors import shown
from unspool.params import Settings
from unspool.sampling.plan import RuleKind

NUMBERS = [f.name for f in fields(SamplingParams) if f.type.startswith(("float", "int", "Literal"))]
NO_NUMBERS = [
    *(10**400, -(10**5000), 10**5000, int, ..., 1j, "1", b"1", True, np.True_, np.float64("nan")),
    *(np.array([1, 2]), np.array(["a"]), Decimal("sNaN"), np.datetime64(0, "s"), []),
]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[(name, v) for name in NUMBERS for v in NO_NUMBERS],
        *[("temperature", v) for v in (-0.1, float("nan"), float("inf"), "1", True, [1], 1e-10, 1e10)],
        *[("top_k", v) for v in (-1, 1.5, "5", True, float("nan"), 2**31)],
        *[("top_p", v) for v in (-0.1, 1.1, float("nan"), "0.5", False)],
        *[("min_p", v) for v in (-0.1, 1.1, float("nan"), "0.5")],
        *[("repetition_penalty", v) for v in (0, -1, float("nan"), float("inf"), "1")],
        *[("penalty_scope", v) for v in ("prompt", 0, -1, 1.5, True, ["all"], 2**31)],
        *[("max_tokens", v) for v in (0, -1, 1.0, "5", True, 2**31)],
        *[("stop", v) for v in ("", ["a", ""], [1], 5, b"x", [b"x"], {"a": 1}, 10**5000, np.array(3))],
        *[
            ("stop_token_ids", v)
            for v in ("5", [-1], [1.5], 5, [True], {1: 2}, 10**5000, [-(10**5000)], np.array(3), b"x")
        ],
        *[(n, v) for n in ("include_stop", "skip_special_tokens", "ignore_eos") for v in (1, "yes", None)],
        *[("seed", v) for v in (-1, 2**64, 1.0, "1", True)],
        *[("n", v) for v in (0, -1, 4097, 1.0, None, True)],
        *[("logprobs", v) for v in (-1, 33, 1.0, None, True)],
    ],
    ids=shown,
)
def test_a_bad_value_is_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        SamplingParams(**{name: bad})
    assert "must be" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        *[("temperature", v) for v in (None, 0, 1e-9, 0.7, 1, 1e9, np.float32(0.5))],
        *[("top_k", v) for v in (None, 0, 1, 2**31 - 1, np.int64(4))],
        *[("top_p", v) for v in (None, 0, 0.5, 1)],
        *[("min_p", v) for v in (None, 0, 0.5, 1)],
        *[("repetition_penalty", v) for v in (None, 1e-4, 1, 1e4)],
        *[("penalty_scope", v) for v in (None, "output", "all", 1, 64, 2**31 - 1)],
        *[("stop", v) for v in (None, "x", ["x", "y"], ("x",), [])],
        *[("stop_token_ids", v) for v in (None, [], [1, 2], np.array([3]))],
        *[("seed", v) for v in (None, 0, 2**64 - 1)],
        *[("logprobs", v) for v in (0, 32)],
    ],
)
def test_the_ends_of_a_range_are_in_it(name: str, good: Any) -> None:
    SamplingParams(**{name: good})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match=r"'temprature'; did you mean temperature\?"):
        SamplingParams(temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match=r"'frequency'; known are temperature, top_k"):
        SamplingParams.of(None, {"frequency": 1})  # type: ignore[typeddict-unknown-key]


def test_settings_by_name_go_before_params() -> None:
    params = SamplingParams(temperature=0.5, top_k=7)
    assert SamplingParams.of(params, {"top_k": 3}) == SamplingParams(temperature=0.5, top_k=3)
    assert SamplingParams.of(params, {}) == params
    with pytest.raises(ParameterError, match="SamplingParams"):
        SamplingParams.of({"top_k": 3}, {})  # type: ignore[arg-type]


def test_every_setting_may_be_given_by_name() -> None:
    hints = get_type_hints(Settings)
    assert list(hints) == [field.name for field in fields(SamplingParams)]
    assert hints == get_type_hints(SamplingParams)


def test_equal_settings_are_equal_however_they_were_given() -> None:
    assert SamplingParams(stop="x") == SamplingParams(stop=["x", "x"])
    assert hash(SamplingParams(stop=["x"], stop_token_ids=[1])) == hash(
        SamplingParams(stop="x", stop_token_ids=(1,))
    )
    params = SamplingParams(stop="x", seed=3)
    assert copy.deepcopy(params) == params


def test_the_chain_has_the_rules_that_are_on_in_the_default_order() -> None:
    params = SamplingParams(top_p=0.9, top_k=5, min_p=0.1, temperature=0.5, repetition_penalty=1.1)
    assert [RuleKind(rule.kind) for rule in params.chain().rules] == [
        RuleKind.REPETITION_PENALTY,
        RuleKind.TEMPERATURE,
        RuleKind.MIN_P,
        RuleKind.TOP_K,
        RuleKind.TOP_P,
    ]
    off = SamplingParams(top_p=1, top_k=0, min_p=0, temperature=1, repetition_penalty=1)
    assert not off.chain().rules
    assert not SamplingParams().chain().rules
