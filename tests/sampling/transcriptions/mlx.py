"""mlx-lm 0.32.2: ``make_logits_processors`` and ``make_sampler`` of ``sample_utils.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.sampling.transcriptions.arithmetic import Probabilities, Row, counts, on, one_hot, scaled, softmax
from unspool.sampling.settings import RuleSettings


def law(logits: Row, s: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Probabilities:
    z = processed(logits.copy(), s, [*prompt, *output][-20:])
    temperature = on(s.temperature, 1.0)
    if temperature == 0:
        return one_hot(z)
    top_p = on(s.top_p, 1.0)
    if 0 < top_p < 1:
        ascending = np.sort(z)
        above = np.append(np.cumsum(softmax(ascending)[::-1])[::-1][1:], 0.0)
        z[z < ascending[int((above >= top_p).sum())]] = -np.inf
    if s.min_p:
        z[z < z.max() + np.log(s.min_p)] = -np.inf
    if s.xtc_probability:  # at 1, always
        p = softmax(z)
        above = p > s.xtc_threshold
        if above.any():
            z[p > p[above].min()] = -np.inf
    if s.top_k:
        z[np.argsort(-z, kind="stable")[s.top_k :]] = -np.inf
    return softmax(z * np.float32(1 / temperature))


def processed(z: Row, s: RuleSettings, recent: Sequence[int]) -> Row:
    """Bias, then the penalties of the last 20 tokens."""
    for token, bias in s.logit_bias:
        z[token] += np.float32(bias)
    said = counts(recent, len(z)).astype(np.float32)
    z = scaled(z, on(s.repetition_penalty, 1.0), said > 0)
    z = z - np.float32(on(s.presence_penalty, 0.0)) * (said > 0).astype(np.float32)
    return np.asarray(z - np.float32(on(s.frequency_penalty, 0.0)) * said, np.float32)
