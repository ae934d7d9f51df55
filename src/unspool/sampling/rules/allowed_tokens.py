"""Allowed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unspool.errors import ParameterError
from unspool.sampling.rules.edit import Allow
from unspool.sampling.rules.rule import Constant


@dataclass(frozen=True)
class AllowedTokens(Allow):
    """Bans all tokens but the given ones. As vLLM's ``allowed_token_ids``."""

    ids: tuple[int, ...]
    """[m] one or more token ids."""
    name: ClassVar[str] = "allowed_tokens"

    def __post_init__(self) -> None:
        if not self.ids:
            raise ParameterError("allowed_token_ids is empty: no token could be drawn; None allows all")

    @property
    def is_off(self) -> bool:
        """Never."""
        return False

    def memory(self, prompt: Sequence[int]) -> Constant:
        """The ids, ascending."""
        return Constant(np.unique(np.array(self.ids, np.int32)))
