"""sglang 0.5.23: ``srt/sampling/sampling_batch_info.py`` and ``penaltylib/`` (the overlapped schedule),
``top_k_top_p_min_p_sampling_from_probs_torch`` of ``srt/layers/sampler.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.sampling.transcriptions.arithmetic import Probabilities, Row, counts, on, scaled, softmax
from unspool.sampling.settings import RuleSettings


def law(logits: Row, s: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Probabilities:
    z = penalized(logits, s, output)
    for token, bias in s.logit_bias:
        z[token] += np.float32(bias)
    temperature, k = on(s.temperature, 1.0), s.top_k or len(z)
    if temperature < 1e-6:
        temperature, k = 1.0, 1
    probabilities = softmax(z / np.float32(temperature))
    order = np.argsort(-probabilities, kind="stable")
    p = probabilities[order]
    before = np.cumsum(p) - p
    p[k:] = 0
    most = on(s.top_p, 1.0)
    if most < 1:
        p[before > most] = 0
    p[p < p[0] * on(s.min_p, 0.0)] = 0
    kept = np.zeros(len(z))
    kept[order] = p / p.sum()
    return kept


def penalized(z: Row, s: RuleSettings, output: Sequence[int]) -> Row:
    """What is added, in one sum, and then what scales; all over the output."""
    said = counts(output, len(z)).astype(np.float32)
    added = -np.float32(on(s.frequency_penalty, 0.0)) * said
    added -= np.float32(on(s.presence_penalty, 0.0)) * (said > 0).astype(np.float32)
    if len(output) < (s.min_tokens or 0):
        added[list(s.end_ids)] = -np.inf
    return scaled(z + added, on(s.repetition_penalty, 1.0), said > 0)
