"""How many tokens a speculative step yields, before anything is run."""

from __future__ import annotations

import math

from unspool.errors import ParameterError, shown

MOST_DRAFTED = 1 << 31
"""No draft is longer than this."""


def expected_tokens(acceptance: float, draft: int) -> float:
    """The tokens that a step with ``draft`` guesses yields on average: (1 - a^(k+1)) / (1 - a).

    acceptance: a, the chance that a drafted token is kept given that those before it were, from 0 to 1,
        taken to be the same for all of them.
    draft: k, how many tokens are drafted in a chain, at least 0.

    The step keeps the first i guesses with probability a^i, and always adds one token of its own, so that
    the mean is 1 + a + ... + a^k: 1 at a = 0, and k + 1 at a = 1.

    Raises ``ParameterError`` for values out of range.

    Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", 2023,
    equation 1.
    """
    if not 0 <= acceptance <= 1:
        raise ParameterError(f"acceptance must be a number from 0 to 1, not {shown(acceptance)}")
    if not 0 <= draft <= MOST_DRAFTED:
        raise ParameterError(f"draft must be a whole number from 0 to {MOST_DRAFTED}, not {shown(draft)}")
    if acceptance in (0, 1):
        return 1.0 + draft * acceptance
    # 1 - a^(k+1) through expm1, which loses nothing where a is close to 1
    return -math.expm1((draft + 1) * math.log(acceptance)) / (1 - acceptance)
