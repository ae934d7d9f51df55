"""Mirostat, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.distribution import exp
from unspool.sampling.noise import natural_log
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.epsilon import Epsilon
from unspool.sampling.rules.rule import (
    NO_AMOUNTS,
    NO_TOKENS,
    Facts,
    Inputs,
    LogitsRow,
    Stateless,
    require,
)

LN2 = 0.6931471805599453
MOST_RANKED = 100
"""Of how many of the most probable candidates mirostat 1 estimates Zipf's exponent."""


@dataclass(frozen=True)
class Mirostat(Stateless):
    """Truncates so that the surprise of the drawn tokens, -log2 p, is tau on average.

    mu starts at 2 tau; after each token, mu -= eta * (surprise - tau). Version 1 estimates the exponent of
    Zipf's law from the most probable candidates and keeps the k for which the expected surprise is mu;
    version 2 keeps the candidates with a surprise of at most mu. tau is from 0.01 to 30 bits, eta from 0 to
    10. Basu, Ramachandran, Keskar and Varshney, "Mirostat: a neural text decoding algorithm that directly
    controls perplexity", 2021.

    renormalized: whether a token's surprise is that under the truncated law (as llama.cpp has it), or under
    the one that reached the rule (as the authors' code has it).
    """

    version: int
    tau: float = 5.0
    eta: float = 0.1
    renormalized: bool = False
    name: ClassVar[str] = "mirostat"

    def __post_init__(self) -> None:
        require("mirostat", self.version, self.version in (1, 2), "0 (off), 1 or 2")
        require("mirostat_tau", self.tau, 0.01 <= self.tau <= 30, "from 0.01 to 30 (bits)")
        require("mirostat_eta", self.eta, 0 <= self.eta <= 10, "from 0 to 10")

    @property
    def kind(self) -> RuleKind:
        """By version."""
        return RuleKind.MIROSTAT_1 if self.version == 1 else RuleKind.EPSILON

    @property
    def values(self) -> tuple[float, ...]:
        """Those of the first token."""
        return values_of(self, 2 * self.tau)

    def memory(self, prompt: Sequence[int]) -> MirostatMemory:
        """mu."""
        return MirostatMemory(self, 2 * self.tau)

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """As for the first token; later ones have another mu."""
        [value] = self.values
        if self.version == 1:
            keep_by_zipf(row, value)
        else:
            Epsilon(value).apply(row, inputs)


def values_of(rule: Mirostat, mu: float) -> tuple[float, ...]:
    """mu itself for version 1, and 2**-mu for version 2."""
    return (mu,) if rule.version == 1 else (power_of_2(-max(mu, 0.0)),)


def power_of_2(x: float) -> float:
    """2**x for x from -126 to 126, beyond which it is taken there; by the project's own exponential."""
    return float(exp(np.array([max(-126.0, min(126.0, x)) * LN2], np.float32))[0])


def keep_by_zipf(row: LogitsRow, mu: float) -> None:
    """Keep the k most probable that Zipf's law gives for mu."""
    row.keep_first(zipf_k(row, mu))


def zipf_k(row: LogitsRow, mu: float) -> int:
    """k = (e 2**mu / (1 - N**-e)) ** (1 / s), e = s - 1, of N tokens; from 1 to as many as there are.

    s = sum(t b) / sum(t**2) over the first ``MOST_RANKED`` candidates, with t_i = log((i + 2) / (i + 1)) and
    b_i = log(p_i / p_i+1), the difference of logits; equations 30 and 39 of the paper.
    """
    n = len(row.ids)
    if n == 1:
        return 1
    z = row.logits[row.descending()[:MOST_RANKED]]
    upper = lower = 0.0
    for i in range(len(z) - 1):
        t = float(natural_log((i + 2) / (i + 1)))
        upper += t * float(z[i] - z[i + 1])
        lower += t * t
    s = upper / lower
    e = s - 1
    power = power_of_2(mu)
    if abs(e) < 1e-6:
        x = power / float(natural_log(float(row.vocabulary)))
    else:
        decay = float(exp(np.array([-e * float(natural_log(float(row.vocabulary)))], np.float32))[0])
        x = e * power / (1 - decay)
    grown = float(natural_log(x))
    if s < 1e-6:
        return n if grown > 0 else 1
    exponent = grown / s
    if exponent >= 30:
        return n
    return max(1, min(n, int(exp(np.array([exponent], np.float32))[0])))


class MirostatMemory:
    """mu, which is learned."""

    __slots__ = ("mu", "rule")

    tokens = NO_TOKENS
    amounts = NO_AMOUNTS

    def __init__(self, rule: Mirostat, mu: float) -> None:
        self.rule, self.mu = rule, mu

    @property
    def values(self) -> tuple[float, ...]:
        """What mu gives."""
        return values_of(self.rule, self.mu)

    def extend(self, token: int, facts: Facts) -> None:
        """mu -= eta * (surprise - tau), in bits; a token that no law would draw surprises by 126 of them."""
        nats = facts.processed_surprise if self.rule.renormalized else facts.surprise
        self.mu -= self.rule.eta * (min(nats / LN2, 126.0) - self.rule.tau)

    def precede(self, token: int) -> None:
        """Nothing changes: only what is generated counts."""

    def fork(self) -> MirostatMemory:
        """The same, going its own way."""
        return MirostatMemory(self.rule, self.mu)
