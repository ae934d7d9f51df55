"""The rules of a request in their order, as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unspool.errors import ParameterError
from unspool.sampling.rules import MinP, RepetitionPenalty, Rule, Temperature, TopK, TopP

DEFAULT_ORDER = ("repetition_penalty", "temperature", "min_p", "top_k", "top_p")
"""The order in which rules see a row, by name, unless the caller has another."""


@dataclass(frozen=True)
class Chain:
    """A compiled chain: the rules that do something, in the order that they do it."""

    rules: tuple[Rule, ...] = ()

    @property
    def kinds(self) -> npt.NDArray[np.int32]:
        """[C] ``RuleKind`` of each rule."""
        return np.array([rule.kind for rule in self.rules], np.int32)

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """[C] parameter of each rule."""
        return np.array([rule.value for rule in self.rules], np.float64)


def compile_chain(
    *,
    repetition_penalty: float | None = None,
    temperature: float | None = None,
    min_p: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    order: Sequence[str] = DEFAULT_ORDER,
) -> Chain:
    """The chain of a request's settings: a rule that is None or off compiles to nothing.

    Parameters
    ----------
    repetition_penalty : 1e-4 to 1e4; 1 is off
    temperature : 0 or 1e-9 to 1e9; 1 is off. 0 is the limit of the chain as ordered: one token is left
        at the temperature's place, so that greedy, ``top_k=1`` and temperature 0 agree in the default order
    min_p : 0 (off) to 1
    top_k : a whole number; 0 is off
    top_p : 0 to 1; 1 is off
    order : names of rules, each at most once; must name every rule that is on

    Raises
    ------
    ParameterError
        For a value out of range, an order with an unknown or repeated name, or one that leaves out a rule
        that is on.
    """
    makers: dict[str, tuple[float | None, Callable[[float], Rule | None]]] = {
        "repetition_penalty": (repetition_penalty, RepetitionPenalty),
        "temperature": (temperature, lambda t: TopK(1) if t == 0 else Temperature(t)),
        "min_p": (min_p, MinP),
        "top_k": (top_k, lambda k: TopK(k) if k != 0 else None),
        "top_p": (top_p, TopP),
    }
    compiled: dict[str, Rule] = {}
    for name, (value, make) in makers.items():
        rule = None if value is None else make(value)
        if rule is not None and not rule.is_off:
            compiled[name] = rule
    _check_order(order, known=makers, needed=compiled)
    return Chain(tuple(compiled[name] for name in order if name in compiled))


def _check_order(order: Sequence[str], known: Collection[str], needed: Collection[str]) -> None:
    for name in order:
        if name not in known:
            raise ParameterError(f"order names {name!r}, which is no rule; rules are {', '.join(known)}")
    if len(set(order)) < len(order):
        raise ParameterError(f"order names a rule twice: {', '.join(order)}")
    for name in needed:
        if name not in order:
            raise ParameterError(f"{name} is set, but order ({', '.join(order)}) leaves it out")
