"""The calculators' formulas, beside the tables of the field and what the pool does."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.tiny import tiny_spec
from unspool.cache import BlockPool, BlockTable, measure
from unspool.cache.size import (
    CACHE_TYPES,
    SHAPES,
    CacheShape,
    buffer_waste,
    cache_bytes,
    paged_waste,
)
from unspool.errors import ParameterError


@pytest.mark.parametrize(("tokens", "gigabytes"), [(4096, "1.3"), (32768, "10.7"), (131072, "42.9")])
def test_llama_3_70b_as_the_field_counts_it(tokens: int, gigabytes: str) -> None:
    size = cache_bytes(SHAPES["llama-3-70b"], tokens, 1, "bfloat16")
    assert f"{size / 1e9:.1f}" == gigabytes


def test_a_token_takes_what_the_model_says() -> None:
    spec = dataclasses.replace(tiny_spec(), num_layers=5, num_kv_heads=3, head_dim=24)
    shape = CacheShape(spec.num_layers, spec.num_kv_heads, spec.head_dim)
    for cache_type in CACHE_TYPES:
        assert cache_bytes(shape, 1, 1, cache_type) == spec.cache_bytes_per_token(cache_type)
        assert cache_bytes(shape, 7, 3, cache_type) == 7 * 3 * spec.cache_bytes_per_token(cache_type)


def test_an_int8_vector_has_a_scale_beside_it() -> None:
    vectors = 2 * 32 * 8
    assert cache_bytes(SHAPES["llama-3-8b"], 1, 1, "int8") == vectors * (128 + 2)
    assert cache_bytes(SHAPES["llama-3-8b"], 1, 1, "float32") == vectors * 4 * 128


@given(tokens=st.integers(1, 300))
def test_the_waste_of_a_length_is_what_a_pool_measures(tokens: int) -> None:
    pool = BlockPool(20)
    table = BlockTable(pool)
    assert table.append(tokens) is not None
    assert paged_waste(tokens) == pytest.approx(measure(pool, [table]).waste, abs=1e-12)
    assert paged_waste(tokens) <= 15 / 16


def test_a_short_request_in_a_long_buffer() -> None:
    assert f"{buffer_waste(320, 4096):.1%}" == "92.2%"
    assert paged_waste(320) == 0.0
    assert buffer_waste(4096, 4096) == 0.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: cache_bytes(SHAPES["llama-3-8b"], -1),
            "tokens must be a whole number from 1 to 2147483648, ",
        ),
        (lambda: cache_bytes(SHAPES["llama-3-8b"], 1, 0), "batch must be .*, not 0"),
        (lambda: cache_bytes(SHAPES["llama-3-8b"], 1, 1, "int4"), "cache_type must be .*, not 'int4'"),  # type: ignore[arg-type]
        (lambda: CacheShape(0, 1, 1), "layers must be .*, not 0"),
        (lambda: CacheShape(1, 1 << 40, 1), "kv_heads must be .*, not 1099511627776"),
        (lambda: CacheShape(1, 1, 1.5), "head_dim must be .*, not 1.5"),  # type: ignore[arg-type]
        (lambda: paged_waste(0), "tokens must be .*, not 0"),
        (lambda: buffer_waste(0, 4), "tokens must be .*, not 0"),
        (lambda: buffer_waste(1, -4), "buffer must be .*, not -4"),
        (lambda: buffer_waste(5, 4), "a sequence of 5 tokens does not fit in a buffer of 4"),
    ],
)
def test_sizes_out_of_range_are_refused_by_name(call: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        call()
