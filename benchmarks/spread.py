"""What several rounds of one measurement say together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median, least and most of one figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 0, factor: float = 1.0, unit: str = "") -> str:
        """``median (least-most)``, each times ``factor``, the unit behind the median."""
        median, least, most = (f"{factor * v:,.{digits}f}" for v in (self.median, self.least, self.most))
        return f"{median}{unit} ({least}-{most})"
