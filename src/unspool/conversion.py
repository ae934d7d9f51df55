"""What a caller gave for a setting, checked and turned into what it is kept as."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import numpy as np

from unspool.errors import ParameterError, shown
from unspool.sampling.presets import DEFAULT_SCOPES
from unspool.sampling.rules import Processor, Scope

MAX_LOGPROBS = 32
"""The most alternatives that can be reported for a token."""
MAX_SAMPLES = 4096
"""The most samples that one request can draw."""
MAX_COUNT = 2**31 - 1
"""The largest count of tokens that can be said, and the largest token id."""
MAX_DIGITS = 20
"""The most digits of a token id in a string; Python refuses to read very many."""

RANGES: dict[str, tuple[int, int, str]] = {
    "top_k": (0, MAX_COUNT, "a whole number from 0 (off) to 2**31 - 1"),
    "mirostat": (0, 2, "0 (off), 1 or 2"),
    "no_repeat_ngram_size": (0, MAX_COUNT, "a whole number from 0 (off) to 2**31 - 1"),
    "dry_allowed_length": (1, MAX_COUNT, "a whole number from 1 to 2**31 - 1"),
    "min_tokens": (0, MAX_COUNT, "a whole number from 0 (off) to 2**31 - 1"),
    "penalty_scope": (1, MAX_COUNT, '"output", "all" or a number of tokens from 1 to 2**31 - 1'),
    "max_tokens": (1, MAX_COUNT, "a whole number from 1 to 2**31 - 1"),
    "seed": (0, 2**64 - 1, "a whole number from 0 to 2**64 - 1"),
    "n": (1, MAX_SAMPLES, f"a whole number from 1 to {MAX_SAMPLES}"),
    "logprobs": (0, MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}"),
    "prompt_logprobs": (0, MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}"),
    "priority": (-(2**31), MAX_COUNT, "a whole number from -2**31 to 2**31 - 1"),
}
"""Whole numbers: least, most, and both in words."""


def refuse(name: str, value: object, allowed: str) -> ParameterError:
    """The error that says what was given and what is allowed."""
    return ParameterError(f"{name} must be {allowed}, not {shown(value)}")


def number(name: str, value: Any) -> float:
    """A real number as a float; its range is the rule's own to check."""
    if is_real(value):
        with suppress(Exception):  # whatever a class of the caller's own raises, it is no number
            return float(value)
    raise refuse(name, value, "a number")


def is_real(value: Any) -> bool:
    """Whether ``float`` gives the whole of a value: of texts, flags and complex numbers it would not."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.dtype.kind in "iufV"  # V: floats that NumPy does not have itself
    return not isinstance(value, (bool, str, bytes, bytearray))


def whole(name: str, value: Any) -> int:
    """A whole number in the range of ``name``, as an int."""
    low, high, allowed = RANGES[name]
    number = index(value)
    if number is None or not low <= number <= high:
        raise refuse(name, value, allowed)
    return number


def whole_between(name: str, value: Any, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, as an int."""
    number = index(value)
    if number is None or not low <= number <= high:
        raise refuse(name, value, f"a whole number from {low} to {high}")
    return number


def number_between(name: str, value: Any, low: float, high: float) -> float:
    """A real number from ``low`` to ``high``, as a float."""
    given = number(name, value)
    if not low <= given <= high:
        raise refuse(name, value, f"a number from {low:g} to {high:g}")
    return given


def index(value: Any) -> int | None:
    """A whole number of any kind as an int; None for everything else, True and False included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except Exception:  # as in ``number``
        return None


def listed(value: Any) -> tuple[Any, ...] | None:
    """What ``value`` holds; None for a text, a mapping, and what cannot be gone through.

    An error that a generator of the caller's own raises is the caller's to see.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return None
    try:
        return tuple(value)
    except TypeError:
        return None


def able(name: str, value: object, ability: str, allowed: str) -> None:
    """Raise unless it is an object with that attribute."""
    with suppress(Exception):  # as in ``number``
        if not isinstance(value, type) and hasattr(value, ability):
            return
    raise refuse(name, value, allowed)


def flag(name: str, value: object) -> None:
    """Raise unless it is True or False."""
    if not isinstance(value, bool):
        raise refuse(name, value, "True or False")


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless it is one of these names."""
    if not isinstance(value, str) or value not in choices:
        raise refuse(name, value, f"one of {', '.join(choices)}")


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or strings, none of them empty, as a tuple without repeats."""
    allowed = "a string or a list of strings, none of them empty"
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else listed(value)
    if strings is None or not all(isinstance(s, str) and s for s in strings):
        raise refuse(name, value, allowed)
    return tuple(dict.fromkeys(map(str, strings)))


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids as a tuple of ints; whether the model has them is checked with the model."""
    allowed = "a list of token ids, whole numbers from 0 to 2**31 - 1"
    if value is None:
        return ()
    given = listed(value)
    ids = tuple(map(index, given)) if given is not None else (None,)
    if any(i is None or not 0 <= i <= MAX_COUNT for i in ids):
        raise refuse(name, value if given is None else given, allowed)
    return ids  # type: ignore[return-value]  # none of them is None


def some_ids(name: str, value: Any) -> tuple[int, ...] | None:
    """Token ids, or ``None`` for none at all."""
    return None if value is None else token_ids(name, value)


def words(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Strings and lists of token ids, none of them empty, as a tuple."""
    allowed = "a list of strings or lists of token ids, none of them empty"
    if value is None:
        return ()
    given = listed(value)
    if given is None:
        raise refuse(name, value, allowed)
    words = tuple(word if isinstance(word, str) else token_ids(name, word) for word in given)
    if not all(words):
        raise refuse(name, value, allowed)
    return words


def breakers(name: str, value: Any) -> tuple[str | tuple[int, ...], ...] | None:
    """Words, or ``None`` for the default ones."""
    return None if value is None else words(name, value)


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """A mapping of token ids to numbers, or pairs of them, as a tuple of pairs in the order of ids."""
    if value is None:
        return ()
    given = couples(name, value, "a mapping of token ids to numbers, or pairs of them")
    ids = token_ids(name, [token_key(token) for token, _ in given])
    if len(set(ids)) < len(ids):
        raise refuse(name, value, "a mapping that names each token once")
    return tuple(sorted((token, number(name, bias)) for token, (_, bias) in zip(ids, given, strict=True)))


def couples(name: str, value: Any, allowed: str) -> tuple[tuple[Any, Any], ...]:
    """The pairs of a mapping, or of a list of pairs."""
    pairs = tuple(value.items()) if isinstance(value, Mapping) else listed(value)
    if pairs is None or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise refuse(name, value, allowed)
    return tuple((first, second) for first, second in pairs)


def pairs(biases: Any) -> tuple[tuple[int, float], ...]:
    """Biases as they are kept."""
    return tuple(biases or ())


def token_key(token: Any) -> Any:
    """A token id that may have been a key in JSON, which has strings only."""
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS:
        return int(token)
    return token


def processors(name: str, value: Any) -> tuple[Processor, ...]:
    """Functions, as a tuple: in an order, so no set."""
    given = () if value is None else None if isinstance(value, Set) else listed(value)
    if given is None or not all(callable(processor) for processor in given):
        raise refuse(name, value, "a list of functions of token ids and logits")
    return given


def order(name: str, value: Any) -> str | tuple[str, ...] | None:
    """A name, or names as a tuple; whether there are such rules is the chain's to check.

    A set is refused: its order is another in each process. So is a generator, as what is no sequence.
    """
    if value is None or isinstance(value, str):
        return value
    names = listed(value) if isinstance(value, Sequence) else None
    if names is None or not all(isinstance(rule, str) for rule in names):
        raise refuse(name, value, "a list of names of rules, or the name of an engine")
    return names


def scope(name: str, value: Any) -> Scope | tuple[tuple[str, Scope], ...] | None:
    """One scope, or pairs of a rule's name and its scope, as a tuple in the order of ``DEFAULT_SCOPES``."""
    if value is None:
        return None
    if not isinstance(value, (Mapping, tuple)):
        return one_scope(name, value)
    pairs = couples(name, value, RANGES[name][2] + ", or one of these by each rule's name")
    for rule, _ in pairs:
        if not isinstance(rule, str) or rule not in DEFAULT_SCOPES:
            raise ParameterError(
                f"{name} names {shown(rule)}; the rules with a scope are {', '.join(DEFAULT_SCOPES)}"
            )
    scopes = {rule: one_scope(name, scope) for rule, scope in pairs}
    if len(scopes) < len(pairs):
        raise refuse(name, value, "a mapping that names each rule once")
    return tuple((rule, scopes[rule]) for rule in DEFAULT_SCOPES if rule in scopes)


def scope_within(given: tuple[tuple[str, Scope], ...], stated: Any) -> dict[str, Scope]:
    """Scopes by rule: those given, and those stated for the rules that they do not name.

    stated: one scope for all rules, or scopes by rule.
    """
    kept = scope("penalty_scope", stated)
    others = (
        dict(kept or ()) if kept is None or isinstance(kept, tuple) else dict.fromkeys(DEFAULT_SCOPES, kept)
    )
    return others | dict(given)


def one_scope(name: str, value: Any) -> Scope:
    """``"output"``, ``"all"`` or a number of tokens."""
    if isinstance(value, str) and value in ("output", "all"):
        return "output" if value == "output" else "all"
    return whole(name, value)
