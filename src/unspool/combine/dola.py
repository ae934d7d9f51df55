"""DoLa: what a model knows in its last layers and not in earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unspool.combine.base import Place
from unspool.combine.plausible import implausible, log_softmax
from unspool.combine.source import Float32Array, Source, TrackSpec
from unspool.conversion import index, listed, number_between
from unspool.errors import ParameterError, shown


@dataclass(frozen=True)
class DoLa:
    """Decoding by contrasting layers (Chuang et al. 2024).

    The row is log p(last layer) - log p(premature layer), where the premature layer is the one among the
    candidates whose law is farthest from the last layer's (by the Jensen-Shannon divergence), for each token
    anew; tokens with p < alpha * (largest p) after the last layer are left out.

    layers: after how many layers the candidates are taken: ``"low"`` or ``"high"``, every second one of the
        model's first or second half, as in Transformers (from 2 on, as the embeddings alone are no exit), or
        a list of numbers from 1 to the model's layers less 1.
    alpha: 0 (off) to 1, the paper's 0.1 by default.

    The paper goes with ``repetition_penalty=1.2``. Raises ``ParameterError`` for what is out of range.
    """

    layers: str | Sequence[int] = "high"
    alpha: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", number_between("alpha", self.alpha, 0.0, 1.0))
        if isinstance(self.layers, str) and self.layers in ("low", "high"):
            return
        allowed = "'low', 'high', or a list of whole numbers from 1, none of them twice"
        given = listed(self.layers)
        layers = tuple(map(index, given)) if given else (None,)
        if any(n is None or n < 1 for n in layers) or len(set(layers)) < len(layers):
            raise ParameterError(f"layers must be {allowed}, not {shown(self.layers)}")
        object.__setattr__(self, "layers", layers)

    def tracks(self, place: Place) -> Source:
        """One track with several exits, the last of which is the model's own."""
        depth = place.spec.num_layers
        exits = self.candidates(depth)
        if not exits or max(exits) >= depth:
            raise ParameterError(
                f"layers={shown(self.layers)}: the model has {depth} layers, and candidates are after 1 to "
                f"{depth - 1} of them"
            )
        return Source((TrackSpec(list(place.prompt), exits=(*exits, depth)),), self.combine)

    def candidates(self, depth: int) -> tuple[int, ...]:
        """After how many of ``depth`` layers the premature rows are taken."""
        if not isinstance(self.layers, str):
            return tuple(self.layers)
        half = depth // 2 if depth <= 40 else depth - 20  # as Transformers divides
        if self.layers == "high":
            return tuple(range(max(half, 1), depth, 2))
        end = half if depth <= 40 else 20
        return tuple(range(2, end, 2)) or (max(1, min(end, 2)),)

    def combine(self, rows: Float32Array) -> Float32Array:
        """[k, vocab_size], premature rows and the last layer's, to [vocab_size]."""
        laws = np.stack([log_softmax(row) for row in rows])
        last, premature = laws[-1], laws[:-1]
        chosen = premature[np.argmax([divergence(last, law) for law in premature])]
        row: Float32Array = last - chosen
        row[implausible(rows[-1], self.alpha)] = -np.inf
        return row


def divergence(a: Float32Array, b: Float32Array) -> float:
    """The Jensen-Shannon divergence of two laws, given as [vocab_size] log-probabilities."""
    p, q = np.exp(a.astype(np.float64)), np.exp(b.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_mean = np.log((p + q) / 2)
        from_p = np.where(p > 0, p * (a - log_mean), 0.0).sum()
        from_q = np.where(q > 0, q * (b - log_mean), 0.0).sum()
    return float(from_p + from_q) / 2
