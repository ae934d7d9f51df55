"""Classifier-free guidance: away from what would follow another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unspool.combine.base import Place
from unspool.combine.source import LinearCombination, Source, TrackSpec


@dataclass(frozen=True)
class Guidance:
    """Logits u + scale (c - u): c follow the prompt, u the negative prompt (Sanchez et al. 2023, eq. 7).

    Both are followed by the same generated tokens. With log-probabilities in place of logits, as Transformers
    has it, the law is the same: they differ from logits by a constant of each row.
    """

    scale: float
    negative: Sequence[int]
    """Token ids; none: the prompt's last token alone, as in Transformers."""

    def tracks(self, place: Place) -> Source:
        """Two tracks through the request's own model."""
        negative = list(self.negative) or [place.prompt[-1]]
        tracks = (TrackSpec(list(place.prompt)), TrackSpec(negative))
        return Source(tracks, LinearCombination((self.scale, 1.0 - self.scale)))
