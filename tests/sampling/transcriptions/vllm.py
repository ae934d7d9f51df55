"""vLLM 0.33.0: ``v1/sample/sampler.py``, ``v1/sample/ops/topk_topp_sampler.py`` (the PyTorch path),
``v1/sample/ops/bad_words.py``, ``model_executor/layers/utils.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.sampling.transcriptions.arithmetic import Probabilities, Row, counts, on, one_hot, scaled, softmax
from unspool.sampling.settings import RuleSettings


def law(logits: Row, s: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Probabilities:
    z = penalized(masked(logits.copy(), s, output), s, prompt, output)
    temperature = on(s.temperature, 1.0)
    if temperature < 1e-5:
        return one_hot(z)
    z = z / np.float32(temperature)
    if s.min_p:
        p = softmax(z)
        z[p < p.max() * s.min_p] = -np.inf
    return softmax(top_k_top_p(z, s.top_k or len(z), on(s.top_p, 1.0)))


def masked(z: Row, s: RuleSettings, output: Sequence[int]) -> Row:
    """Allowed ids, bad words that the output has begun, minimum tokens, then biases."""
    if s.allowed_token_ids is not None:
        forbidden = np.ones(len(z), bool)
        forbidden[list(s.allowed_token_ids)] = False
        z[forbidden] = -np.inf
    for word in s.bad_words:
        before = list(word[:-1])
        if len(output) >= len(before) and list(output[len(output) - len(before) :]) == before:
            z[word[-1]] = -np.inf
    if len(output) < (s.min_tokens or 0):
        z[list(s.end_ids)] = -np.inf
    for token, bias in s.logit_bias:
        z[token] += np.float32(bias)
    return z


def penalized(z: Row, s: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Row:
    """Repetition over prompt and output; frequency and presence over the output."""
    said = counts(output, len(z))
    z = scaled(z, on(s.repetition_penalty, 1.0), counts([*prompt, *output], len(z)) > 0)
    z = z - np.float32(on(s.frequency_penalty, 0.0)) * said.astype(np.float32)
    return np.asarray(z - np.float32(on(s.presence_penalty, 0.0)) * (said > 0).astype(np.float32), np.float32)


def top_k_top_p(z: Row, k: int, p: float) -> Row:
    """Ascending: below the k-th largest goes, then what makes at most 1 - p, but never the last."""
    order = np.argsort(z, kind="stable")
    ascending = z[order]
    ascending[ascending < ascending[max(0, len(z) - k)]] = -np.inf
    gone = np.cumsum(softmax(ascending)) <= 1 - p
    gone[-1] = False
    if p < 1:
        ascending[gone] = -np.inf
    kept = np.empty_like(z)
    kept[order] = ascending
    return kept
