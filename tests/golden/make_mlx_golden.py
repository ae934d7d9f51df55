"""Write mlx.json.gz: what mlx-lm's logits processors and sampler make of rows of logits.

Run with a Python that has mlx-lm, on any device:

    python tests/golden/make_mlx_golden.py

Each case has its row, so that tests need no generator. Probabilities are the softmax, in double precision, of
the logits that mlx-lm draws from, to nine decimals.
"""

from __future__ import annotations

import gzip
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx  # type: ignore[import-not-found,unused-ignore]
import numpy as np
from mlx_lm import sample_utils  # type: ignore[import-not-found,unused-ignore]

SEED, CASES, SIZE = 20260, 200, 48
KINDS = ("random", "peaked", "even", "tied")


def row_of(kind: str, generator: np.random.RandomState) -> Any:
    """[SIZE] float32 logits of one character."""
    normal = generator.standard_normal(SIZE)
    if kind == "peaked":
        normal[generator.randint(SIZE)] += 9
    elif kind == "even":
        normal = np.full(SIZE, -1.25)
    elif kind == "tied":
        normal = np.round(normal)
    else:
        normal = 3 * normal
    return normal.astype(np.float32)


def settings_of(kind: str, generator: np.random.RandomState) -> dict[str, Any]:
    """About half of what mlx-lm can do, by our names; nothing that leaves open which of tied tokens stay."""
    drawn: dict[str, Any] = {
        "logit_bias": [[2, round(generator.uniform(-3, 3), 3)], [9, -20.0]],
        "repetition_penalty": round(generator.uniform(0.8, 1.6), 3),
        "presence_penalty": round(generator.uniform(-0.5, 1.5), 3),
        "frequency_penalty": round(generator.uniform(-0.5, 1.0), 3),
        "top_p": round(generator.uniform(0.2, 0.99), 3),
        "min_p": round(generator.uniform(0.01, 0.4), 3),
        "xtc_threshold": round(generator.uniform(0.02, 0.3), 3),
        "top_k": int(generator.randint(1, 30)),
        "temperature": float(generator.choice([0.0, 0.4, 0.8, 1.5])),
    }
    untied = kind in ("random", "peaked")
    kept = {name: value for name, value in drawn.items() if generator.uniform() < 0.5}
    return {name: value for name, value in kept.items() if untied or name not in ("top_k", "xtc_threshold")}


def law_of(row: Any, settings: dict[str, Any], tokens: list[int]) -> list[list[float]]:
    """[kept, 2] ids and probabilities that mlx-lm draws from; XTC is certain where it is on."""
    logits = mx.array(row)[None]
    processors = sample_utils.make_logits_processors(
        logit_bias=dict(settings.get("logit_bias", [])) or None,
        **{
            name: settings.get(name)
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        },
    )
    for process in processors:
        logits = process(mx.array(tokens), logits)
    drawn_from: list[Any] = []
    sample_utils.categorical_sampling = lambda x, temp: drawn_from.append(x * (1.0 / temp))
    sampler = sample_utils.make_sampler(
        temp=settings.get("temperature", 1.0),
        xtc_probability=float("xtc_threshold" in settings),
        **{name: settings[name] for name in ("top_p", "min_p", "top_k", "xtc_threshold") if name in settings},
    )
    token = sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    if not drawn_from:
        return [[int(token.item()), 1.0]]
    z = np.array(drawn_from[0][0], dtype=np.float64)
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    return [[int(i), round(float(p[i]), 9)] for i in np.flatnonzero(z > -np.inf)]


def main() -> None:
    """Write the file beside this one."""
    generator = np.random.RandomState(SEED)
    cases = []
    for n in range(CASES):
        kind = KINDS[n % len(KINDS)]
        row, settings = row_of(kind, generator), settings_of(kind, generator)
        tokens = generator.randint(0, 16, generator.randint(1, 50)).tolist()
        cases.append(
            {
                "row": row.tolist(),
                "settings": settings,
                "tokens": tokens,
                "law": law_of(row, settings, tokens),
            }
        )
    golden = {"mlx": version("mlx"), "mlx-lm": version("mlx-lm"), "cases": cases}
    target = Path(__file__).with_name("mlx.json.gz")
    target.write_bytes(gzip.compress(json.dumps(golden).encode(), mtime=0))
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
