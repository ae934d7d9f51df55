"""Rules that change some tokens' logits: add to them, ban them, or ban all others."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.rule import Inputs, LogitsRow


class Add:
    """z becomes z + amount for each of the given tokens, in float32; -inf bans."""

    kind: ClassVar[RuleKind] = RuleKind.ADD
    values: tuple[float, ...] = ()

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Add, and drop what is banned."""
        amounts = np.zeros(row.vocabulary, np.float32)
        amounts[inputs.tokens] = inputs.amounts
        touched = np.isin(row.ids, inputs.tokens)
        with np.errstate(over="ignore"):
            row.logits = np.where(touched, row.logits + amounts[row.ids], row.logits)
        row.keep(row.logits > -np.inf)


class Ban:
    """z becomes -inf for each of the given tokens."""

    kind: ClassVar[RuleKind] = RuleKind.BAN
    values: tuple[float, ...] = ()

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Drop them."""
        row.keep(~np.isin(row.ids, inputs.tokens))


class Allow:
    """z becomes -inf for all but the given tokens."""

    kind: ClassVar[RuleKind] = RuleKind.ALLOW
    values: tuple[float, ...] = ()

    def apply(self, row: LogitsRow, inputs: Inputs) -> None:
        """Drop all others."""
        row.keep(np.isin(row.ids, inputs.tokens))
