"""OpenVINO GenAI: ``src/cpp/src/sampling/logit_processor.hpp`` and ``logit_transformers.hpp`` at 0731d8e."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.sampling.transcriptions.arithmetic import Probabilities, Row, counts, on, one_hot, scaled, softmax
from unspool.sampling.settings import RuleSettings


def law(logits: Row, s: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Probabilities:
    z = logits.copy()
    if len(output) < (s.min_tokens or 0):
        z[list(s.end_ids)] = -np.inf
    z = scaled(z, on(s.repetition_penalty, 1.0), counts([*prompt, *output], len(z)) > 0)
    temperature = on(s.temperature, 1.0)
    if temperature == 0:
        return one_hot(z)
    tokens = np.argsort(-z, kind="stable")[: s.top_k or len(z)]
    p = softmax(z[tokens] / np.float32(temperature))
    if s.min_p:
        stays = p >= s.min_p * p.max()
        tokens, p = tokens[stays], p[stays]
    most = on(s.top_p, 1.0)
    if most < 1:
        # The probabilities still sum to what min-p has left of 1.
        passed = np.flatnonzero(np.cumsum(p) > most)
        count = int(passed[0]) + 1 if len(passed) else len(p)
        tokens, p = tokens[:count], p[:count]
    kept = np.zeros(len(z))
    kept[tokens] = p / p.sum()
    return kept
