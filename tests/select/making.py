"""Candidates made of a text and its tokens' log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from unspool.results import Candidate, Token


def candidate(text: str, logprobs: Sequence[float] = (-1.0,), index: int = 0) -> Candidate:
    """One with a token for each log-probability; the processed ones are others on purpose."""
    tokens = [Token(i, "", logprob, -100.0 - i, 0, 0.0, 1) for i, logprob in enumerate(logprobs)]
    return Candidate(index, text, [token.id for token in tokens], tokens, "stop", None)


def candidates(texts: Sequence[str], means: Sequence[float] | None = None) -> list[Candidate]:
    """In sample order, each of two tokens with the given mean log-probability."""
    means = [-1.0] * len(texts) if means is None else means
    return [candidate(text, (mean, mean), i) for i, (text, mean) in enumerate(zip(texts, means, strict=True))]
