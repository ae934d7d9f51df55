"""llama.cpp as in llama-cpp-python 0.3.36: ``common/sampling.cpp`` and ``src/llama-sampler.cpp``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.sampling.transcriptions.arithmetic import SURPRISE, Probabilities, Row, counts, on, scaled, softmax
from unspool.sampling.settings import RuleSettings

LAST_N = 64
Ids = npt.NDArray[np.int64]


def law(logits: Row, s: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Probabilities:
    recent = [*prompt, *output][-LAST_N:]
    z = dry(penalized(biased(logits.copy(), s), s, recent), s, recent)
    if s.top_n_sigma:
        finite = z[z > -np.inf].astype(np.float64)
        z[z < z.max() - s.top_n_sigma * finite.std()] = -np.inf
    ids = np.argsort(-z, kind="stable")
    ids = ids[z[ids] > -np.inf][: s.top_k or len(z)]
    ids = xtc(min_p(top_p(typical(ids, z, s), z, s), z, s), z, s)
    t = temperature(z[ids], s)
    if t == 0:
        ids = ids[:1]
    p = softmax(z[ids] / np.float32(t or 1.0))
    if s.adaptive_target is not None:
        distance = np.abs(p - aim(s, len(output))) / 0.3
        p = softmax((5 - 10 * distance**2 / (1 + distance)).astype(np.float32))
    kept = np.zeros(len(z))
    kept[ids] = p
    return kept


def biased(z: Row, s: RuleSettings) -> Row:
    """The caller's biases, and -inf for what ends the text if that is to be ignored."""
    for token, bias in s.logit_bias:
        z[token] += np.float32(bias)
    if s.suppress_end:
        z[list(s.end_ids)] = -np.inf
    return z


def penalized(z: Row, s: RuleSettings, recent: Sequence[int]) -> Row:
    """One sampler: the repetition penalty, then count * frequency + presence."""
    said = counts(recent, len(z)).astype(np.float32)
    z = scaled(z, on(s.repetition_penalty, 1.0), said > 0)
    frequency, presence = np.float32(on(s.frequency_penalty, 0.0)), np.float32(on(s.presence_penalty, 0.0))
    return np.asarray(z - (said * frequency + (said > 0) * presence), np.float32)


def dry(z: Row, s: RuleSettings, recent: Sequence[int]) -> Row:
    """Breakers of one token: the scan back for one limits how long a repeat may be."""
    if not s.dry_multiplier:
        return z
    breakers = {breaker[0] for breaker in s.dry_breakers}
    n = len(recent)
    limit = next((i for i in range(n) if recent[n - 1 - i] in breakers), n)
    longest: dict[int, int] = {}
    for end in range(n - 1):
        length = 0
        while length < min(limit, end + 1) and recent[end - length] == recent[n - 1 - length]:
            length += 1
        if length >= s.dry_allowed_length:
            longest[recent[end + 1]] = max(length, longest.get(recent[end + 1], 0))
    for token, length in longest.items():
        if token not in breakers:
            z[token] -= np.float32(s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length))
    return z


def typical(ids: Ids, z: Row, s: RuleSettings) -> Ids:
    """By the distance of surprise from entropy, until the sum is beyond t."""
    least = on(s.typical_p, 1.0)
    if least >= 1:
        return ids
    ids = np.sort(ids)
    p = softmax(z[ids])
    surprise = -np.log(p)
    # In float32, so that tokens that are equally far in their arithmetic are so here.
    order = np.argsort(np.abs(surprise - (p * surprise).sum()).astype(np.float32), kind="stable")
    passed = np.flatnonzero(np.cumsum(p[order]) > least)
    kept = np.sort(ids[order[: int(passed[0]) + 1 if len(passed) else len(order)]])
    return kept[np.argsort(-z[kept], kind="stable")]


def top_p(ids: Ids, z: Row, s: RuleSettings) -> Ids:
    """Descending, until the sum reaches p."""
    least = on(s.top_p, 1.0)
    if least >= 1:
        return ids
    reached = np.flatnonzero(np.cumsum(softmax(z[ids])) >= least)
    return ids[: int(reached[0]) + 1 if len(reached) else len(ids)]


def min_p(ids: Ids, z: Row, s: RuleSettings) -> Ids:
    """Logits from the largest and log m."""
    return ids[z[ids] >= z[ids].max() + np.log(s.min_p)] if s.min_p else ids


def xtc(ids: Ids, z: Row, s: RuleSettings) -> Ids:
    """All that reach the threshold go but the last of them; at probability 1, always."""
    if not s.xtc_probability or s.xtc_threshold > 0.5 or len(ids) < 2:
        return ids
    top = int((softmax(z[ids]) >= s.xtc_threshold).sum())
    return ids[max(0, top - 1) :]


def temperature(z: Row, s: RuleSettings) -> float:
    """The plain one, or by the entropy of what is left."""
    plain = on(s.temperature, 1.0)
    if not s.dynatemp_range:
        return plain
    if len(z) < 2:
        return 1.0
    p = softmax(z)
    share = float(-(p * np.log(p)).sum() / np.log(len(p)))
    low, high = max(0.0, plain - s.dynatemp_range), plain + s.dynatemp_range
    return low + (high - low) * float(min(1.0, share) ** s.dynatemp_exponent)


def aim(s: RuleSettings, drawn: int) -> float:
    """What adaptive-p aims at after so many tokens that were all as surprising."""
    target, decay = on(s.adaptive_target, 0.0), s.adaptive_decay
    total, weight = target / (1 - decay), 1 / (1 - decay)
    for _ in range(drawn):
        total, weight = np.exp(-SURPRISE) + decay * total, 1 + decay * weight
    return float(np.clip(2 * target - total / weight, 0, 1))


def mirostat_step(z: Row, s: RuleSettings, mu: float) -> tuple[Probabilities, Ids]:
    """The law under mu, and its tokens by descending probability. z: after the temperature."""
    ids = np.argsort(-z, kind="stable")
    p = softmax(z[ids])
    if s.mirostat == 2:
        count = max(1, int(np.argmax(np.append(-np.log2(p) > mu, True))))
    else:
        places = np.arange(min(99, len(p) - 1))
        t, b = np.log((places + 2) / (places + 1)), np.log(p[places] / p[places + 1])
        slope = float((t * b).sum() / (t * t).sum())
        excess = slope - 1
        count = max(1, int((excess * 2**mu / (1 - len(z) ** -excess)) ** (1 / slope)))
    kept = np.zeros(len(z))
    kept[ids[:count]] = p[:count] / p[:count].sum()
    return kept, ids[:count]
