"""Settings of another engine, taken one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from unspool import conversion
from unspool.errors import ParameterError, shown
from unspool.sampling.presets import PRESETS
from unspool.sampling.rules import Scope

Converted = TypeVar("Converted")
Default = TypeVar("Default")


@dataclass
class Reading:
    """Settings that are taken one by one; those that are left in the end have no equal."""

    engine: str
    left: dict[str, Any]
    refused: list[str] = field(default_factory=list)
    """What to say of each setting that cannot be translated."""

    def take(self, *names: str, default: Any = None) -> Any:
        """The value that goes by one of the names; ``default`` where it is missing."""
        given = [name for name in names if self.left.get(name) is not None]
        values = [self.left[name] for name in given]
        for name in names:
            self.left.pop(name, None)
        if len(given) > 1:
            self.refused.append(f"{' and '.join(given)} (two names of one setting)")
        return values[0] if values else default

    def without_dashes(self, letters: Mapping[str, str]) -> None:
        """Spell names as a request does, not as a command line; one that comes twice is refused.

        letters: what the names of one dash and one letter mean there, which may mean something else in a
            request. Those that are not among them stay as they are, and so are unknown in the end.
        """
        given, self.left = self.left, {}
        for name, value in given.items():
            plain = name.lstrip("-").replace("-", "_")
            if name.startswith("-") and len(plain) < 2:
                plain = letters.get(name, name)
            if plain in self.left:
                self.refused.append(f"{plain} (given twice)")
            self.left[plain] = value

    def number(self, *names: str, default: Default) -> float | Default:
        """The same for a number; anything else, and NaN, is refused."""
        value = self.take(*names)
        if value is None:
            return default
        try:
            number = conversion.number(names[0], value)
        except ParameterError:
            number = math.nan
        if math.isnan(number):
            self.refused.append(f"{names[0]}={shown(value)} (not a number)")
            return default
        return number

    def whole(self, *names: str, default: Default) -> int | Default:
        """The same for a whole number; its range is ``SamplingParams``'s to check."""
        value = self.take(*names)
        if value is None:
            return default
        number = conversion.index(value)
        if number is None:
            self.refused.append(f"{names[0]}={shown(value)} (not a whole number)")
            return default
        return number

    def flag(self, name: str) -> bool | None:
        """The same for True or False."""
        value = self.take(name)
        if value is None or isinstance(value, bool):
            return value
        self.refused.append(f"{name}={shown(value)} (not True or False)")
        return None

    def converted(self, convert: Callable[[str, Any], Converted], *names: str) -> Converted | None:
        """The same as ``convert`` makes it; refused where that raises ``ParameterError``."""
        value = self.take(*names)
        if value is None:
            return None
        try:
            return convert(names[0], value)
        except ParameterError as error:
            self.refused.append(f"{names[0]}={shown(value)} ({error})")
            return None

    def expect_off(self, off: Mapping[str, Collection[Any]]) -> None:
        """Refuse each of the settings that has another value than those that do nothing."""
        for name, nothing in off.items():
            value = self.take(name)
            if value is not None and not is_one_of(value, nothing):
                self.refused.append(f"{name}={shown(value)}")

    def skip(self, names: Iterable[str]) -> None:
        """Pass over settings on which no token depends."""
        for name in names:
            self.left.pop(name, None)

    def finish(self) -> None:
        """Raise ``ParameterError`` for all that was refused, and all that was never asked for."""
        unknown = [f"{short(name)} (unknown)" for name, value in self.left.items() if value is not None]
        if self.refused or unknown:
            raise ParameterError(
                f"no equal here for these settings of {self.engine}: {', '.join(self.refused + unknown)}"
            )


def reading_of(engine: str, settings: Any) -> Reading:
    """A reading of a mapping, or of an object that has a ``to_dict``."""
    given = settings
    if not isinstance(given, (Mapping, type)) and callable(getattr(given, "to_dict", None)):
        try:
            given = given.to_dict()
        except Exception as error:  # whatever a class of the caller's own raises
            raise ParameterError(f"{shown(settings)} has no settings of {engine}: {shown(error)}") from error
    if not isinstance(given, Mapping):
        raise ParameterError(f"settings of {engine} must be a mapping, not {shown(settings)}")
    reading = Reading(engine, {name: value for name, value in given.items() if isinstance(name, str)})
    unnamed = [name for name, value in given.items() if not isinstance(name, str) and value is not None]
    reading.refused.extend(f"{shown(name)} (not a name)" for name in unnamed)
    return reading


def short(name: str) -> str:
    """A name as an error shows it."""
    return name if len(name) <= 60 else shown(name)


def is_one_of(value: Any, values: Collection[Any]) -> bool:
    """Whether a value equals one of the others, True and False being no numbers.

    What cannot be compared, or gives more than one answer as an array does, equals none.
    """
    flags = (bool, np.bool_)
    try:
        alike = [value == other for other in values if isinstance(value, flags) == isinstance(other, flags)]
        return any(isinstance(answer, flags) and bool(answer) for answer in alike)
    except Exception:  # whatever a class of the caller's own raises
        return False


def scopes_of(engine: str) -> dict[str, Scope]:
    """The scopes of an engine's penalties, said so that a model's own default does not replace them."""
    preset = PRESETS[engine]
    return {name: scope for name, scope in preset.scopes.items() if name in preset.order}


def present(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not ``None``."""
    return {name: value for name, value in settings.items() if value is not None}
