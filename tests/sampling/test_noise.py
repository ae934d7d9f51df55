"""Keyed noise: known answers, exact tails."""

from __future__ import annotations

import numpy as np
import pytest

from unspool.sampling.noise import (
    TAIL_BITS,
    Purpose,
    exponentials,
    exponentials_of_bits,
    mix,
    natural_log,
    philox,
    token_bits,
)


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ([0, 0, 0, 0], 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0_A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: list[int], key: int, block: list[int]) -> None:
    np.testing.assert_array_equal(philox(counter, key), np.array(block, np.uint32))


def test_a_tokens_bits_are_one_word_of_its_block() -> None:
    tokens = np.array([0, 1, 2, 3, 4, 49_151], np.int32)
    bits = token_bits(77, tokens, 5, 2, Purpose.TOKEN)
    for token, word in zip(tokens.tolist(), bits, strict=True):
        assert word == philox([token >> 2, 5, 2, 0], 77)[token & 3]


def test_what_is_drawn_for_has_bits_of_its_own() -> None:
    tokens = np.arange(64, dtype=np.int32)
    drawn = [token_bits(1, tokens, 0, 0, purpose) for purpose in Purpose]
    assert len({bits.tobytes() for bits in drawn}) == len(Purpose)


def test_distinct_seeds_and_lanes_give_distinct_keys() -> None:
    keys = {mix(seed, lane) for seed in (0, 1, 2, 2**63, 2**64 - 1) for lane in (0, 1, 2, 2**64 - 1)}
    assert len(keys) == 20
    assert all(0 <= key < 2**64 for key in keys)


def test_the_logarithm_is_right_to_the_last_bit_or_two() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.random(100_000), 1 / rng.random(100_000), 1 - rng.random(1000) * 1e-6, [1.0, 2.0]]
    )
    np.testing.assert_allclose(natural_log(x), np.log(x), rtol=2.0**-51)


def test_exponential_variables_are_minus_log_of_one_minus_v() -> None:
    bits = np.array([TAIL_BITS, 2**20, 2**31, 2**32 - 1], np.uint32)
    v = (bits.astype(np.float64) + 0.5) / 2.0**32
    np.testing.assert_allclose(exponentials_of_bits(bits, bits), -np.log1p(-v), rtol=1e-15)


def test_a_thin_tail_is_continued_by_more_bits() -> None:
    bits = np.array([0, 0, 1, TAIL_BITS - 1], np.uint32)
    tail = np.array([0, 2**32 - 1, 12_345, 7], np.uint32)
    v = (bits * 2.0**32 + tail + 0.5) / 2.0**64
    np.testing.assert_allclose(exponentials_of_bits(bits, tail), -np.log1p(-v), rtol=1e-15)
    assert exponentials_of_bits(bits, tail)[0] < 1e-19


def test_exponential_variables_have_mean_and_variance_one() -> None:
    e = exponentials(mix(3), np.arange(1_000_000, dtype=np.int32), 0, 0)
    assert abs(e.mean() - 1) < 4e-3
    assert abs(e.var() - 1) < 4 * np.sqrt(8e-6)
