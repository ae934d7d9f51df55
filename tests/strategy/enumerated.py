"""Every text that a tiny model may say with few tokens, and how probable it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.engine.making import generate, make_engine, read_rows
from tests.strategy.models import native
from unspool.results import Candidate

PROMPT = (7, 31, 12)
ALLOWED = (2, 5, 9, 14)
"""The tokens that are drawn from; 2 ends a text."""
MOST = 3
ASKED: dict[str, Any] = {"allowed_token_ids": ALLOWED, "max_tokens": MOST, "include_stop": True}


@cache
def law_after(prefix: tuple[int, ...], temperature: float = 1.0) -> dict[int, float]:
    """Log-probabilities of what follows the prompt and a prefix."""
    row = read_rows(make_engine(native()), [*PROMPT, *prefix])[-1].astype(np.float64)
    kept = row[list(ALLOWED)] / temperature
    return dict(zip(ALLOWED, (kept - np.logaddexp.reduce(kept)).tolist(), strict=True))


@cache
def texts(prefix: tuple[int, ...] = (), total: float = 0.0) -> dict[tuple[int, ...], float]:
    """Every text and its log-probability."""
    made: dict[tuple[int, ...], float] = {}
    for token, score in law_after(prefix).items():
        longer = (*prefix, token)
        if token == 2 or len(longer) == MOST:
            made[longer] = total + score
        else:
            made |= texts(longer, total + score)
    return made


def best_texts(count: int) -> list[tuple[int, ...]]:
    return sorted(texts(), key=lambda text: -texts()[text])[:count]


def said(candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
    return [tuple(candidate.token_ids) for candidate in candidates]


def ask(**settings: object) -> list[Candidate]:
    engine = make_engine(native())
    return generate(engine, list(PROMPT), **{**ASKED, **settings}).candidates
