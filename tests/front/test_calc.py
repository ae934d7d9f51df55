"""``unspool calc``, and the expected yield of speculation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.tiny import tiny_spec
from unspool.cache.size import CACHE_TYPES, SHAPES
from unspool.cli.main import main
from unspool.errors import ParameterError
from unspool.speculate import expected_tokens


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Calc = Callable[..., Ran]


@pytest.fixture
def calc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Calc:
    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["unspool", "calc", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return Ran(int(left.value.code or 0), captured.out, captured.err)

    return run


def test_expected_tokens_by_enumeration() -> None:
    for draft, acceptance in product(range(5), (Fraction(0), Fraction(1, 3), Fraction(7, 8), Fraction(1))):
        mean = Fraction(0)
        for kept in product((True, False), repeat=draft):
            chance = Fraction(1)
            for token in kept:
                chance *= acceptance if token else 1 - acceptance
            mean += chance * (1 + [*kept, False].index(False))
        assert expected_tokens(float(acceptance), draft) == pytest.approx(float(mean), rel=1e-14)


@given(acceptance=st.floats(0, 1), draft=st.integers(0, 60))
def test_expected_tokens_is_the_sum_of_its_series(acceptance: float, draft: int) -> None:
    exact = sum(Fraction(acceptance) ** i for i in range(draft + 1))
    assert expected_tokens(acceptance, draft) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(
    ("acceptance", "draft", "said"),
    [
        (-0.1, 3, "acceptance must be a number from 0 to 1, not -0.1"),
        (1.5, 3, "acceptance must be a number from 0 to 1, not 1.5"),
        (float("nan"), 3, "acceptance must be a number from 0 to 1, not nan"),
        (0.5, -1, "draft must be a whole number from 0 to 2147483648, not -1"),
        (0.5, 1 << 32, "draft must be a whole number from 0 to 2147483648, not 4294967296"),
    ],
)
def test_a_yield_out_of_range_is_refused(calc: Calc, acceptance: float, draft: int, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        expected_tokens(acceptance, draft)
    ran = calc("speculation", "--acceptance", acceptance, "--draft", draft)
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: {said}\n")


def test_speculation(calc: Calc) -> None:
    arguments = ("speculation", "--acceptance", "0.8", "--draft", "5")
    facts = json.loads(calc(*arguments, "--json").out)
    assert facts == {"acceptance": 0.8, "draft": 5, "expected_tokens": expected_tokens(0.8, 5)}
    assert "3.689" in calc(*arguments).out


def test_cache_of_a_known_shape(calc: Calc) -> None:
    counts = (4096, 32768, 131072)
    arguments = ("cache", "--shape", "llama-3-70b", *(f"--tokens={count}" for count in counts))
    facts = json.loads(calc(*arguments, "--json").out)
    assert facts["bytes_per_token"] == 327_680
    assert facts["sizes"] == [{"tokens": count, "bytes": 327_680 * count} for count in counts]
    shown = calc(*arguments).out
    for size in ("1.3 GB", "10.7 GB", "42.9 GB", "42,949,672,960"):
        assert size in shown


def test_cache_of_a_model_is_that_of_its_sizes(calc: Calc, tiny_path: Path) -> None:
    spec = tiny_spec()
    common = ("cache", "--tokens", "100", "--batch", "3", "--cache-type", "float32", "--json")
    of_file = calc(*common, "--model", tiny_path)
    sizes = ("--layers", spec.num_layers, "--kv-heads", spec.num_kv_heads, "--head-dim", spec.head_dim)
    assert of_file == calc(*common, *sizes)
    assert json.loads(of_file.out)["sizes"][0]["bytes"] == 100 * 3 * spec.cache_bytes_per_token("float32")
    small = calc("cache", "--tokens", "100", "--cache-type", "int8", "--json", "--model", tiny_path)
    assert json.loads(small.out)["bytes_per_token"] == spec.cache_bytes_per_token("int8")


def test_blocks_beside_a_buffer(calc: Calc) -> None:
    arguments = ("blocks", "--tokens", "320", "--buffer", "4096")
    facts = json.loads(calc(*arguments, "--json").out)
    assert facts == {
        "tokens": 320,
        "blocks": 20,
        "slots": 320,
        "waste": 0.0,
        "buffer": 4096,
        "buffer_waste": 3776 / 4096,
    }
    assert "92.2%" in calc(*arguments).out
    alone = json.loads(calc("blocks", "--tokens", "321", "--json").out)
    assert alone == {"tokens": 321, "blocks": 21, "slots": 336, "waste": 15 / 336}


RANGE = "must be a whole number from 1 to 2147483648, not"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("blocks --tokens -1", f"tokens {RANGE} -1"),
        ("blocks --tokens 5 --buffer 0", f"buffer {RANGE} 0"),
        ("blocks --tokens 5 --buffer 4", "a sequence of 5 tokens does not fit in a buffer of 4"),
        ("cache --tokens 0 --shape llama-3-8b", f"tokens {RANGE} 0"),
        ("cache --tokens 1 --batch -2 --shape llama-3-8b", f"batch {RANGE} -2"),
        ("cache --tokens 1 --layers 1 --kv-heads -1 --head-dim 1", f"kv_heads {RANGE} -1"),
        (
            "cache --tokens 1 --shape llama-3-8b --cache-type f8",
            "cache_type must be one of float16, bfloat16, float32, int8, not 'f8'",
        ),
        (
            "cache --tokens 1",
            "give --model, --shape, or all of --layers, --kv-heads and --head-dim",
        ),
        (
            "cache --tokens 1 --layers 0 --head-dim 2",
            "give --model, --shape, or all of --layers, --kv-heads and --head-dim",
        ),
        (
            "cache --tokens 1 --shape llama-3-8b --layers 2",
            "give only one of --model, --shape, and --layers with --kv-heads and --head-dim",
        ),
        ("cache --tokens 1 --shape x", f"shape must be one of {', '.join(SHAPES)}, not 'x'"),
    ],
)
def test_sizes_that_cannot_be_are_refused(calc: Calc, arguments: str, said: str) -> None:
    ran = calc(*arguments.split())
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: {said}\n")


def test_help_names_what_there_is_and_what_is_taken_for_granted(calc: Calc) -> None:
    said = "".join(calc("cache", "--help").out.split())  # a name may be broken at its hyphens
    for name in (*SHAPES, *CACHE_TYPES, "sliding", "scales", "prefix"):
        assert name in said
