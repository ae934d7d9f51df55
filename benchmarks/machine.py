"""The machine in words that say what matters to a measurement: no names."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

from unspool._native import Pool, read_bandwidth

PROBE_BYTES = 256 << 20
"""Bytes that each worker of the probe reads: beyond the caches of a processor's cores."""


@dataclass(frozen=True)
class Machine:
    """What the figures were measured on."""

    architecture: str
    threads: int
    instruction_set: str

    @classmethod
    def of(cls, threads: int, instruction_set: str) -> Machine:
        """This machine."""
        return cls(platform.machine(), threads, instruction_set)

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)

    def text(self) -> str:
        """One line."""
        return f"{self.architecture}, {self.threads} threads, kernels: {self.instruction_set}"


def probe_bandwidth(pool: Pool, repeats: int = 3) -> float:
    """Bytes a second that all threads together read from memory."""
    return read_bandwidth(pool, PROBE_BYTES, repeats)
