"""The sampler of the reference backend: each planned row's chain and draw, in plain NumPy.

The noise is a hash of (key, position, sample, token), a stand-in for the engine's keyed noise that
has what engine tests need: it depends on the request alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unspool.backend.base import Float32Array
from unspool.sampling.plan import RowResults, RowStatus, RuleKind, SamplePlan


def log_softmax(z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Natural log of softmax; -inf stays -inf."""
    shifted = z - z.max()
    out: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return out


def apply_rule(z: npt.NDArray[np.float64], kind: int, value: float, seen: npt.NDArray[np.int32]) -> None:
    """Apply one rule of the chain in place; -inf marks a token that is not kept."""
    if kind == RuleKind.REPETITION_PENALTY:
        z[seen] = np.where(z[seen] > 0, z[seen] / value, z[seen] * value)
    elif kind == RuleKind.TEMPERATURE:
        if value == 0:
            best = int(np.argmax(z))
            z[np.arange(len(z)) != best] = -np.inf
        else:
            z /= value
    elif kind == RuleKind.TOP_K:
        order = np.argsort(-z, kind="stable")
        z[order[int(value) :]] = -np.inf
    elif kind == RuleKind.TOP_P and value < 1:
        order = np.argsort(-z, kind="stable")
        mass = np.cumsum(np.exp(log_softmax(z))[order])
        z[order[int(np.searchsorted(mass, value - 2.0**-24)) + 1 :]] = -np.inf
    elif kind == RuleKind.MIN_P and value > 0:
        z[z < z.max() + np.log(value)] = -np.inf


def exponentials(key: int, position: int, sample: int, size: int) -> npt.NDArray[np.float64]:
    """[size] standard exponential noise, a function of its arguments."""
    seed = np.random.SeedSequence([key, position, sample])
    return np.random.Generator(np.random.Philox(seed)).standard_exponential(size)


def sample_rows(logits: Float32Array, plan: SamplePlan) -> RowResults:
    """Run every planned row's chain and draw ``argmin E / w`` over what it kept."""
    n, m = len(plan.rows), plan.num_logprobs
    out = RowResults(
        tokens=np.full(n, -1, np.int32),
        status=np.zeros(n, np.int32),
        logprobs=np.zeros(n, np.float32),
        processed_logprobs=np.zeros(n, np.float32),
        ranks=np.zeros(n, np.int32),
        entropies=np.zeros(n, np.float32),
        kept=np.zeros(n, np.int32),
        top_tokens=np.zeros((n, m), np.int32),
        top_logprobs=np.zeros((n, m), np.float32),
    )
    for i in range(n):
        raw = logits[plan.rows[i]].astype(np.float64)
        if np.isnan(raw).any():
            out.status[i] = RowStatus.NOT_A_NUMBER
        elif np.isneginf(raw).all():
            out.status[i] = RowStatus.EMPTY
        else:
            draw(raw, plan, i, out)
    return out


def draw(raw: npt.NDArray[np.float64], plan: SamplePlan, i: int, out: RowResults) -> None:
    """Fill row ``i`` of the results."""
    z = raw.copy()
    seen = plan.history[plan.history_starts[i] : plan.history_starts[i + 1]]
    for c in range(plan.chain_starts[i], plan.chain_starts[i + 1]):
        apply_rule(z, int(plan.kinds[c]), float(plan.values[c]), seen)
    law, raw_law = log_softmax(z), log_softmax(raw)
    noise = exponentials(int(plan.keys[i]), int(plan.positions[i]), int(plan.sample_indices[i]), len(z))
    with np.errstate(divide="ignore"):
        token = int(np.argmin(np.log(noise) - law))
    order = np.argsort(-raw, kind="stable")
    out.tokens[i] = token
    out.logprobs[i], out.processed_logprobs[i] = raw_law[token], law[token]
    out.ranks[i] = int(np.nonzero(order == token)[0][0])
    p = np.exp(raw_law)
    out.entropies[i] = -np.sum(p[p > 0] * raw_law[p > 0])
    out.kept[i] = int(np.isfinite(z).sum())
    top = order[: plan.num_logprobs]
    out.top_tokens[i], out.top_logprobs[i] = top, raw_law[top]
