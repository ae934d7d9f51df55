"""Logit bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.sampling.rules.edit import Add
from unspool.sampling.rules.rule import Constant, require


@dataclass(frozen=True)
class LogitBias(Add):
    """z becomes z + bias for each of the given tokens; -inf bans one.

    A bias is a number up to 1e6, or -inf. OpenAI's ``logit_bias``, without its bounds of -100 and 100.
    """

    biases: tuple[tuple[int, float], ...]
    """[m] (token id, bias), each token once."""
    name: ClassVar[str] = "logit_bias"

    def __post_init__(self) -> None:
        for token, bias in self.biases:
            holds = bias <= 1e6 and not math.isnan(bias)
            require(f"logit_bias of token {token}", bias, holds, "a number up to 1e6, or -inf to ban it")

    @property
    def is_off(self) -> bool:
        """Where there is none."""
        return not self.biases

    def memory(self, prompt: Sequence[int]) -> Constant:
        """The biases."""
        tokens = np.array([token for token, _ in self.biases], np.int32)
        with np.errstate(over="ignore"):  # a bias below float32's range bans
            return Constant(tokens, np.array([bias for _, bias in self.biases]).astype(np.float32))
