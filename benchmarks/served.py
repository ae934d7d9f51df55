"""What the clients of a load saw; imported by the peers' interpreters too, so only the standard library."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress, pairwise
from typing import Any

from benchmarks.workload import MixedLoad

Gap = tuple[float, float]
"""A stretch of time: its beginning and its end."""


@dataclass
class Served:
    """One request as its client saw it, in seconds from the beginning of the load."""

    kind: str
    asked: float
    """When it was asked, or was due to be."""
    pieces: list[float] = field(default_factory=list)
    """When each piece of the answer was there; a piece is a token, or tokens that came together."""

    @property
    def first(self) -> float:
        """When the first piece was there."""
        return self.pieces[0]

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)


def percentile(values: Iterable[float], share: float) -> float:
    """The least value that at least ``share`` of all values do not exceed; 0 < share <= 1.

    Raises ``ValueError`` where there is no value.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured: the load needs more time, or a machine that keeps up with it")
    return ordered[math.ceil(share * len(ordered)) - 1]


@dataclass(frozen=True)
class MixedFigures:
    """One engine's figures under one mixed load, in seconds."""

    chats: int
    """Chats whose time to first token counts."""
    long_prompts: int
    chat_first_p50: float
    chat_first_p99: float
    """Time to first token, from the asking."""
    long_first_p50: float
    long_first_p99: float
    between_p50: float
    between_p99: float
    """Between the pieces of chats."""
    between_in_prefill_p99: float
    """The same while a long prompt waits for its first token."""
    decode_only: float
    """The median between the pieces of chats while no request waits for its first token; before
    ``settle`` too."""

    @property
    def stall(self) -> float:
        """How many decode-only steps the p99 between tokens takes while a long prompt is computed."""
        return self.between_in_prefill_p99 / self.decode_only

    @classmethod
    def of(cls, load: MixedLoad, served: Sequence[Served]) -> MixedFigures:
        """The figures of what was asked while counting, and of the gaps within that time."""
        counted = [s for s in served if load.settle <= s.asked < load.seconds]
        first = {kind: [s.first - s.asked for s in counted if s.kind == kind] for kind in ("chat", "long")}
        gaps = [
            gap for s in served if s.kind == "chat" for gap in pairwise(s.pieces) if gap[1] <= load.seconds
        ]
        waiting = within(gaps, [(s.asked, s.first) for s in served])
        settled = [gap for gap in gaps if gap[0] >= load.settle]
        beside_long = within(settled, [(s.asked, s.first) for s in served if s.kind == "long"])
        return cls(
            chats=len(first["chat"]),
            long_prompts=len(first["long"]),
            chat_first_p50=percentile(first["chat"], 0.5),
            chat_first_p99=percentile(first["chat"], 0.99),
            long_first_p50=percentile(first["long"], 0.5),
            long_first_p99=percentile(first["long"], 0.99),
            between_p50=percentile(lengths(settled), 0.5),
            between_p99=percentile(lengths(settled), 0.99),
            between_in_prefill_p99=percentile(lengths(compress(settled, beside_long)), 0.99),
            decode_only=percentile(lengths(compress(gaps, (not at for at in waiting))), 0.5),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {**asdict(self), "stall": self.stall}


def lengths(gaps: Iterable[Gap]) -> list[float]:
    """How long each gap lasts."""
    return [end - start for start, end in gaps]


def within(gaps: Sequence[Gap], spans: Iterable[Gap]) -> list[bool]:
    """Whether the middle of each gap lies within any of the spans.

    The middle, because the pieces of one step reach their clients one after another: of two gaps that
    meet at a step, the one before it must not count as the one after.
    """
    union = merged(spans)
    starts = [start for start, _ in union]
    made = []
    for start, end in gaps:
        middle = (start + end) / 2
        at = bisect_right(starts, middle) - 1
        made.append(at >= 0 and middle <= union[at][1])
    return made


def merged(spans: Iterable[Gap]) -> list[Gap]:
    """The union of spans, as spans in order that do not meet."""
    union: list[Gap] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union
