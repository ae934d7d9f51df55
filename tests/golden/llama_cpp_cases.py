"""What is asked of llama.cpp's samplers, and rows for it: knows neither llama.cpp nor the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Sampler = tuple[str, tuple[Any, ...]]
"""A name of ``llama_sampler_init_*``, and its arguments but for vocabulary, seed and ``min_keep``."""

KINDS = ("random", "peaked", "even", "tied")
BREAKERS = ("\n", ":", '"', "ab")
HISTORY_LENGTH = 40
ALPHABET = 6


@dataclass(frozen=True)
class Case:
    """Samplers in their order, on one row after a history; or on several rows, each after the token drawn."""

    name: str
    samplers: tuple[Sampler, ...]
    kind: str
    size: int
    seed: int
    rows: int = 1

    def logits(self) -> Float32Array:
        """[rows, size] float32, the same with any NumPy: the legacy generator's stream is frozen."""
        generator = np.random.RandomState(self.seed)
        normal = generator.standard_normal((self.rows, self.size))
        if self.kind == "peaked":
            normal = 2 * normal
            normal[:, self.size // 3] += 8
        elif self.kind == "random":
            normal = 2.5 * normal
        elif self.kind == "tied":
            normal = np.round(1.3 * normal)
        elif self.kind == "even":
            normal = 0.3 * normal
        return normal.astype(np.float32)

    def history(self, alphabet: list[int]) -> list[int]:
        """Tokens that came before, with many repeats."""
        generator = np.random.RandomState(self.seed + 1)
        block = generator.choice(alphabet, 7).tolist()
        noise = generator.choice(alphabet, HISTORY_LENGTH).tolist()
        return [int(t) for t in (noise[:12] + block + noise[12:20] + block[2:] + noise[20:22] + block)]


ALONE: tuple[Sampler, ...] = (
    *(("top_k", (k,)) for k in (1, 7, 40, 1000)),
    *(("top_p", (p,)) for p in (0.1, 0.537, 0.9, 0.991)),
    *(("min_p", (p,)) for p in (0.003, 0.05, 0.31)),
    *(("typical", (p,)) for p in (0.137, 0.7, 0.953)),
    *(("top_n_sigma", (n,)) for n in (0.5, 1.0, 2.3)),
    *(("temp", (t,)) for t in (0.0, 0.3, 1.7)),
    *(("temp_ext", v) for v in ((0.8, 0.0, 1.0), (0.8, 0.5, 1.0), (1.0, 1.0, 0.5), (1.2, 1.9, 2.5))),
    *(("xtc", (1.0, t)) for t in (0.013, 0.1, 0.31)),
    ("penalties", (64, 1.3, 0.0, 0.0)),
    ("penalties", (64, 1.0, 0.4, 0.0)),
    ("penalties", (64, 1.0, 0.0, -0.7)),
    ("penalties", (9, 0.8, 0.3, 0.2)),
    *(
        ("dry", v)
        for v in ((0.8, 1.75, 2, 1000), (1.5, 1.2, 1, 1000), (0.5, 3.0, 3, 1000), (0.8, 1.75, 1, 15))
    ),
    ("dry", (2.0, 1.0, 2, 30)),
    ("logit_bias", (((3, 2.5), (8, -1.25), (11, -np.inf)),)),
)

DEFAULT_CHAIN: tuple[Sampler, ...] = (
    ("logit_bias", (((3, 2.5), (11, -np.inf)),)),
    ("penalties", (64, 1.1, 0.1, 0.2)),
    ("dry", (0.8, 1.75, 2, 1000)),
    ("top_n_sigma", (3.1,)),
    ("top_k", (40,)),
    ("typical", (0.97,)),
    ("top_p", (0.95,)),
    ("min_p", (0.05,)),
    ("xtc", (1.0, 0.23)),
    ("temp_ext", (0.8, 0.3, 1.0)),
)
"""The order of its ``common_params_sampling``."""

LEARNING: tuple[tuple[Sampler, ...], ...] = (
    (("temp", (0.8,)), ("mirostat", (5.0, 0.1, 100))),
    (("temp", (1.0,)), ("mirostat", (2.0, 0.5, 100))),
    (("temp", (0.8,)), ("mirostat_v2", (5.0, 0.1))),
    (("temp", (1.0,)), ("mirostat_v2", (1.5, 0.5))),
    (("min_p", (0.02,)), ("adaptive_p", (0.5, 0.9))),
    (("top_k", (30,)), ("adaptive_p", (0.2, 0.5))),
    (("top_k", (30,)), ("adaptive_p", (0.9, 0.0))),
)


def cases() -> Iterator[Case]:
    """Every case, with rows of its own."""
    seed = 1000
    for sampler in ALONE:
        for kind in KINDS:
            seed += 10
            yield Case(f"{sampler[0]} {sampler[1]} {kind}", (sampler,), kind, 96 + seed % 97, seed)
    for kind in KINDS[:3]:
        for _ in range(3):
            seed += 10
            yield Case(f"default chain {kind} {seed}", DEFAULT_CHAIN, kind, 200, seed)
    for samplers in LEARNING:
        # Of even rows its mirostat 1 takes a power beyond float32 for a k below 1, and keeps one token.
        for kind in KINDS[:2] if samplers[1][0] == "mirostat" else KINDS[:3]:
            seed += 10
            yield Case(f"{samplers[1][0]} {samplers[1][1]} {kind}", samplers, kind, 150, seed, rows=20)
