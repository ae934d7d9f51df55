"""What the settings of all beam searches have in common, checked."""

from __future__ import annotations

import math
from typing import Any

from unspool import conversion
from unspool.errors import ParameterError
from unspool.strategy.base import Task
from unspool.strategy.hypotheses import Scoring
from unspool.strategy.pool import EarlyStopping, Pool, promise
from unspool.strategy.tree import Tree

MAX_WIDTH = 4096
"""The most beams of one request."""
MAX_LENGTH_PENALTY = 1000
"""Powers beyond it order texts by their length alone."""


def whole(name: str, value: Any, most: int = MAX_WIDTH) -> int:
    """A whole number from 1 on. Raises ``ParameterError``."""
    number = conversion.index(value)
    if number is None or not 1 <= number <= most:
        raise conversion.refuse(name, value, f"a whole number from 1 to {most}")
    return number


def real(name: str, value: Any, low: float, high: float) -> float:
    """A number in a range. Raises ``ParameterError``."""
    number = conversion.number(name, value)
    if not (math.isfinite(number) and low <= number <= high):
        raise conversion.refuse(name, value, f"a number from {low:g} to {high:g}")
    return number


def check(method: Any) -> None:
    """Check the width, length penalty, early stopping and n of a frozen method, and keep them as they are.

    Raises ``ParameterError``.
    """
    keep = object.__setattr__
    keep(method, "width", whole("width", method.width))
    limit = MAX_LENGTH_PENALTY
    keep(method, "length_penalty", real("length_penalty", method.length_penalty, -limit, limit))
    stopping = method.early_stopping
    if not isinstance(stopping, bool) and not (isinstance(stopping, str) and stopping == "never"):
        raise conversion.refuse("early_stopping", stopping, 'True, False or "never"')
    if method.n is not None:
        keep(method, "n", whole("n", method.n))
        check_results(method.n, method.width)


def check_results(n: int, width: int) -> None:
    """Raise ``ParameterError`` for more results than beams."""
    if n > width:
        raise ParameterError(
            f"n={n} results of {width} beams: a search keeps no more than its width, raise it"
        )


def results(method: Any, task: Task) -> int:
    """How many results are wanted: what the method says, else what its request does.

    Raises ``ParameterError`` where they say different things, or more than there are beams.
    """
    n: int = task.n if method.n is None else method.n
    if task.n not in (1, n):
        raise ParameterError(f"n={task.n} and n={n} in {type(method).__name__}: say it in one place")
    check_results(n, method.width)
    return n


def make_pool(
    method: Any, task: Task, n: int, tree: Tree | None, progress: Any = None, groups: int = 1
) -> Pool:
    """The beams of a method, or of one of its groups.

    What cannot be among the n results need not be kept where the bound is true; the cheaper rules count
    hypotheses by the width.
    """
    width = method.width // groups
    stopping: EarlyStopping = method.early_stopping
    capacity = min(n, width) if stopping == "never" and not task.transformers else width
    scoring = Scoring(method.length_penalty, task.max_tokens)
    return Pool(width, capacity, task, scoring, promise(stopping, scoring, task), tree, progress)
