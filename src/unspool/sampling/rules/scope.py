"""Which of a branch's tokens a penalty sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Scope = Literal["output", "all"] | int
"""``"output"``: the generated tokens; ``"all"``: the prompt's too; n: the last n of prompt and output."""


def in_scope(scope: Scope, prompt: Sequence[int]) -> Sequence[int]:
    """The prompt's tokens that are in scope before anything is generated."""
    if scope == "output":
        return ()
    return prompt if scope == "all" else prompt[max(0, len(prompt) - scope) :]
