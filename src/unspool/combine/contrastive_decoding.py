"""Contrastive decoding: what a better model likes and a worse one does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unspool.combine.base import Place
from unspool.combine.plausible import implausible, log_softmax
from unspool.combine.source import Float32Array, Source, TrackSpec
from unspool.conversion import number_between
from unspool.errors import ParameterError, shown

if TYPE_CHECKING:
    from unspool.llm import LLM


@dataclass(frozen=True)
class ContrastiveDecoding:
    """Prefers what the request's own model, the expert, finds more probable than an amateur does.

    Tokens with p < alpha * (largest p) under the expert are left out. The others' logits are
    ``(1 + beta) expert - beta amateur`` (O'Brien and Lewis 2023, eq. 2); with ``beta=None`` they are
    ``log p(expert) - log p(amateur)``, as Li et al. 2022 (eq. 4) have it.

    amateur: an ``LLM`` with the same vocabulary, which is loaded once more beside the expert.
    alpha: 0 (off) to 1, Li's 0.1 by default.
    beta: 0 (the expert alone) to 100.
    temperature: of the amateur; its logits are divided by it; above 0 to 100.

    Raises ``ParameterError`` for what is out of range.
    """

    amateur: LLM
    alpha: float = 0.1
    beta: float | None = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not hasattr(self.amateur, "tokenizer"):
            raise ParameterError(f"amateur must be an unspool.LLM, not {shown(self.amateur)}")
        bounds = {"alpha": (0.0, 1.0), "beta": (0.0, 100.0), "temperature": (1e-3, 100.0)}
        for name, (low, high) in bounds.items():
            given = getattr(self, name)
            if name == "beta" and given is None:
                continue
            object.__setattr__(self, name, number_between(name, given, low, high))

    def tracks(self, place: Place) -> Source:
        """The prompt through both models."""
        prompt = list(place.prompt)
        return Source((TrackSpec(prompt), TrackSpec(prompt, place.attach(self.amateur))), self.combine)

    def combine(self, rows: Float32Array) -> Float32Array:
        """[2, vocab_size], the expert's row and the amateur's, to [vocab_size]."""
        expert, amateur = rows[0], rows[1] / np.float32(self.temperature)
        if self.beta is None:
            row = log_softmax(expert) - log_softmax(amateur)
        else:
            row = expert * np.float32(1 + self.beta) - amateur * np.float32(self.beta)
        row[implausible(expert, self.alpha)] = -np.inf
        return row
