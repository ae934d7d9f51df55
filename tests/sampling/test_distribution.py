"""The law in fixed point."""

from __future__ import annotations

import numpy as np

from tests.sampling.rows import row_of
from unspool.sampling.distribution import UNIT, Distribution, exp, masses


def test_exp_is_right_to_float32() -> None:
    x = np.linspace(-87, 20, 200_001, dtype=np.float32)
    np.testing.assert_allclose(exp(x), np.exp(x.astype(np.float64)), rtol=2e-7)


def test_exp_ends_in_zero_and_passes_nan_on() -> None:
    x = np.array([0, -87.01, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(exp(x), np.array([1, 0, 0, np.nan], np.float32))


def test_masses_are_relative_to_the_most_probable_and_sum_in_any_order() -> None:
    rng = np.random.default_rng(1)
    z = row_of("random", 5000, rng)
    w = masses(z)
    assert w.max() == UNIT
    assert w.sum() == rng.permutation(w).sum()
    p = np.exp(z.astype(np.float64) - z.max())
    np.testing.assert_allclose(w / w.sum(), p / p.sum(), atol=1e-9)


def test_entropy_and_log_probabilities_agree_with_double_precision() -> None:
    for kind in ("random", "peaked", "flat", "banned"):
        z = row_of(kind, 3000, np.random.default_rng(2))
        z = z[z > -np.inf]
        law = Distribution.of(np.arange(len(z), dtype=np.int32), z)
        x = z.astype(np.float64) - z.max()
        log_p = x - np.log(np.exp(x).sum())
        np.testing.assert_allclose(law.log_probabilities, log_p, atol=2e-6)
        np.testing.assert_allclose(law.entropy, -np.sum(np.exp(log_p) * log_p), atol=2e-6)


def test_logits_beyond_float32_of_each_other_are_no_fault() -> None:
    law = Distribution.of(np.arange(3, dtype=np.int32), np.array([3e38, -3e38, -np.inf], np.float32))
    assert law.probabilities.tolist() == [1, 0, 0]
    assert law.entropy == 0
