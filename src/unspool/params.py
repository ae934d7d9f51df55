"""What a caller may ask of a generation, checked where it is said."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

import numpy as np

from unspool.errors import ParameterError, shown
from unspool.sampling.chain import Chain, compile_chain

MAX_LOGPROBS = 32
"""The most alternatives that can be reported for a token."""
MAX_SAMPLES = 4096
"""The most samples that one request can draw."""
MAX_COUNT = 2**31 - 1
"""The largest count of tokens that can be said."""


class Settings(TypedDict, total=False):
    """The keyword arguments of a generation: each means what it means in ``SamplingParams``."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    penalty_scope: Literal["output", "all"] | int | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    include_stop: bool
    skip_special_tokens: bool
    ignore_eos: bool
    seed: int | None
    n: int
    logprobs: int
    priority: int
    cache_salt: str | None


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are drawn and where they end.

    The rules apply in this order: repetition penalty, temperature, min-p, top-k, top-p. For each of
    them ``None`` means the model's own default if its file states one, else that the rule is off.

    Raises ``ParameterError`` for an unknown name, a wrong type, NaN, or a value out of range.
    """

    temperature: float | None = None
    """Divides the logits; 0, or 1e-9 to 1e9. 0 is greedy; 1 is off."""
    top_k: int | None = None
    """Keeps the k most probable tokens (Fan et al. 2018); 0 to 2**31 - 1, 0 is off, 1 is greedy."""
    top_p: float | None = None
    """Keeps the smallest set of most probable tokens with mass at least p (Holtzman et al. 2019);
    0 (the most probable alone) to 1 (off)."""
    min_p: float | None = None
    """Keeps tokens at least m times as probable as the best (Nguyen et al. 2024); 0 to 1, 0 is off."""
    repetition_penalty: float | None = None
    """Each distinct token in scope has its logit divided by r if positive, multiplied by r if not
    (Keskar et al. 2019); 1e-4 to 1e4, 1 is off."""
    penalty_scope: Literal["output", "all"] | int | None = None
    """Which tokens a penalty sees: those generated (``"output"``, as Keskar defines it), the prompt's too
    (``"all"``), or the last n of prompt and output (1 to 2**31 - 1). ``None``: the model's own default if
    its file states one, else ``"output"``."""
    max_tokens: int | None = None
    """The most tokens to generate; 1 to 2**31 - 1. ``None``: up to 256, or fewer where the context ends
    (for a chat's reply, 1024). With a value, prompt and ``max_tokens`` must fit in the context."""
    stop: str | Iterable[str] | None = ()
    """One or more strings that end the text. The first to be completed wins, the longest of those that
    the same character completes. Kept as a tuple."""
    stop_token_ids: Iterable[int] | None = ()
    """Token ids that end the text, beside the model's end-of-text tokens. Kept as a tuple."""
    include_stop: bool = False
    """Whether the stop string or token that ended the text stays in the result."""
    skip_special_tokens: bool = True
    """Whether special tokens leave no text."""
    ignore_eos: bool = False
    """Whether to go on past the model's end-of-text tokens: for measuring."""
    seed: int | None = None
    """Fixes every draw; 0 to 2**64 - 1. ``None``: drawn, and returned with the result."""
    n: int = 1
    """How many samples to draw of the prompt; 1 to 4096. They differ under one seed."""
    logprobs: int = 0
    """How many of the most probable tokens to report beside each drawn one; 0 to 32."""
    priority: int = 0
    """Which requests go first where not all can: those of a higher priority, then those that came first;
    -2**31 to 2**31 - 1. Tokens do not depend on it."""
    cache_salt: str | None = None
    """Requests share the cache of what their prompts have in common only under the same salt: a tenant with a
    salt of its own cannot learn from its waiting times what others have asked. Tokens do not depend on it."""

    def __new__(cls, *_: Any, **settings: Any) -> SamplingParams:
        """Refuse an unknown name before ``__init__`` would, and say which one may be meant."""
        check_names(settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(name, getattr(self, name)))
        if self.top_k is not None:
            object.__setattr__(self, "top_k", _whole("top_k", self.top_k))
        self.chain()  # checks the rules' ranges
        for name in ("max_tokens", "seed", "n", "logprobs", "priority"):
            if getattr(self, name) is not None or name in ("n", "logprobs", "priority"):
                object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("include_stop", "skip_special_tokens", "ignore_eos"):
            _flag(name, getattr(self, name))
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "penalty_scope", _scope("penalty_scope", self.penalty_scope))
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise _refuse("cache_salt", self.cache_salt, "a string")

    def chain(self) -> Chain:
        """The rules that are on, in the default order."""
        return compile_chain(
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
            min_p=self.min_p,
            top_k=self.top_k,
            top_p=self.top_p,
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as the tuple that it is kept as."""
        return tuple(self.stop or ())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """``stop_token_ids`` as the tuple that it is kept as."""
        return tuple(self.stop_token_ids or ())

    @classmethod
    def of(cls, params: SamplingParams | None, settings: Settings) -> SamplingParams:
        """``params`` (or the defaults) with ``settings`` in place of its own.

        Raises ``ParameterError`` where ``params`` is no ``SamplingParams`` or a setting is refused.
        """
        if params is not None and not isinstance(params, SamplingParams):
            raise ParameterError(
                f"params must be a SamplingParams, not {shown(params)}; settings may also be given by name"
            )
        check_names(dict(settings))
        return cls(**settings) if params is None else replace(params, **settings)


_NAMES = tuple(field.name for field in fields(SamplingParams))

_RANGES: dict[str, tuple[int, int, str]] = {
    "top_k": (0, MAX_COUNT, "a whole number from 0 (off) to 2**31 - 1"),
    "penalty_scope": (1, MAX_COUNT, '"output", "all" or a number of tokens from 1 to 2**31 - 1'),
    "max_tokens": (1, MAX_COUNT, "a whole number from 1 to 2**31 - 1"),
    "seed": (0, 2**64 - 1, "a whole number from 0 to 2**64 - 1"),
    "n": (1, MAX_SAMPLES, f"a whole number from 1 to {MAX_SAMPLES}"),
    "logprobs": (0, MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}"),
    "priority": (-(2**31), MAX_COUNT, "a whole number from -2**31 to 2**31 - 1"),
}


def check_names(settings: dict[str, Any]) -> None:
    """Raise ``ParameterError`` for a name that is no setting, with the nearest that is."""
    for name in settings:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_NAMES)}"
            raise ParameterError(f"unknown parameter {name!r}{hint}")


def _refuse(name: str, value: object, allowed: str) -> ParameterError:
    return ParameterError(f"{name} must be {allowed}, not {shown(value)}")


def _number(name: str, value: Any) -> float:
    """A real number as a float; its range is the rule's own to check."""
    if not isinstance(value, (bool, np.bool_, str, bytes, bytearray)):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise _refuse(name, value, "a number")


def _whole(name: str, value: Any) -> int:
    """A whole number in the range of ``name``, as an int."""
    low, high, allowed = _RANGES[name]
    number = _index(value)
    if number is None or not low <= number <= high:
        raise _refuse(name, value, allowed)
    return number


def _index(value: Any) -> int | None:
    """A whole number of any kind as an int; None for everything else, True and False included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _listed(value: Any) -> tuple[Any, ...] | None:
    """What ``value`` holds; None where it holds nothing that can be gone through."""
    try:
        return tuple(value)
    except TypeError:
        return None


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refuse(name, value, "True or False")


def _strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or strings, none of them empty, as a tuple without repeats."""
    allowed = "a string or a list of strings, none of them empty"
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else None if isinstance(value, dict) else _listed(value)
    if strings is None or not all(isinstance(s, str) and s for s in strings):
        raise _refuse(name, value, allowed)
    return tuple(dict.fromkeys(map(str, strings)))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids as a tuple of ints; whether the model has them is checked with the model."""
    allowed = "a list of token ids, whole numbers from 0"
    if value is None:
        return ()
    given = None if isinstance(value, (str, bytes, bytearray, dict)) else _listed(value)
    ids = tuple(map(_index, given)) if given is not None else (None,)
    if any(i is None or i < 0 for i in ids):
        raise _refuse(name, value if given is None else given, allowed)
    return ids  # type: ignore[return-value]  # none of them is None


def _scope(name: str, value: Any) -> Literal["output", "all"] | int | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("output", "all"):
        return "output" if value == "output" else "all"
    return _whole(name, value)
