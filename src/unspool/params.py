"""What a caller may ask of a generation, checked where it is said."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from unspool.errors import ParameterError
from unspool.sampling.chain import Chain, compile_chain

MAX_LOGPROBS = 32
"""The most alternatives that can be reported for a token."""
MAX_SAMPLES = 4096
"""The most samples that one request can draw."""


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
    """Keeps the k most probable tokens (Fan et al. 2018); at least 0, 0 is off, 1 is greedy."""
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
    (``"all"``), or the last n of prompt and output (a whole number, at least 1). ``None``: the model's own
    default if its file states one, else ``"output"``."""
    max_tokens: int | None = None
    """The most tokens to generate, at least 1. ``None``: up to 256, or fewer where the context ends
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
        for name in ("max_tokens", "seed", "n", "logprobs"):
            if getattr(self, name) is not None or name in ("n", "logprobs"):
                object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("include_stop", "skip_special_tokens", "ignore_eos"):
            _flag(name, getattr(self, name))
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "penalty_scope", _scope("penalty_scope", self.penalty_scope))

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
                f"params must be a SamplingParams, not {_said(params)}; settings may also be given by name"
            )
        check_names(dict(settings))
        return cls(**settings) if params is None else replace(params, **settings)


_NAMES = tuple(field.name for field in fields(SamplingParams))

_RANGES: dict[str, tuple[float, float, str]] = {
    "top_k": (0, math.inf, "a whole number, at least 0 (0 is off)"),
    "max_tokens": (1, math.inf, "a whole number, at least 1"),
    "seed": (0, 2**64 - 1, "a whole number from 0 to 2**64 - 1"),
    "n": (1, MAX_SAMPLES, f"a whole number from 1 to {MAX_SAMPLES}"),
    "logprobs": (0, MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}"),
}


def check_names(settings: dict[str, Any]) -> None:
    """Raise ``ParameterError`` for a name that is no setting, with the nearest that is."""
    for name in settings:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_NAMES)}"
            raise ParameterError(f"unknown parameter {name!r}{hint}")


def _said(value: object) -> str:
    """A value as an error shows it, short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(name: str, value: object, allowed: str) -> ParameterError:
    return ParameterError(f"{name} must be {allowed}, not {_said(value)}")


def _number(name: str, value: Any) -> float:
    """A real number as a float; its range is the rule's own to check."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise _refuse(name, value, "a number")
    return float(value)


def _whole(name: str, value: Any) -> int:
    """A whole number in the range of ``name``, as an int."""
    low, high, allowed = _RANGES[name]
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _refuse(name, value, allowed)
    number = operator.index(value)
    if not low <= number <= high:
        raise _refuse(name, value, allowed)
    return number


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refuse(name, value, "True or False")


def _strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or strings, none of them empty, as a tuple without repeats."""
    allowed = "a string or a list of strings, none of them empty"
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, (bytes, dict)):
        raise _refuse(name, value, allowed)
    strings = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(s, str) and s for s in strings):
        raise _refuse(name, value, allowed)
    return tuple(dict.fromkeys(strings))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids as a tuple of ints; whether the model has them is checked with the model."""
    allowed = "a list of token ids, whole numbers from 0"
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, dict)):
        raise _refuse(name, value, allowed)
    ids = tuple(value)
    for i in ids:
        if isinstance(i, bool) or not hasattr(i, "__index__") or operator.index(i) < 0:
            raise _refuse(name, value, allowed)
    return tuple(operator.index(i) for i in ids)


def _scope(name: str, value: Any) -> Literal["output", "all"] | int | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("output", "all"):
        return "output" if value == "output" else "all"
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise _refuse(name, value, '"output", "all" or a whole number of tokens, at least 1')
    return operator.index(value)
