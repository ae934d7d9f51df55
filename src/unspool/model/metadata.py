"""A model file's metadata, read by key with the type and range that each reader needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from unspool.errors import ModelFileError


class Metadata(Mapping[str, Any]):
    """Keys and values as the file states them, and typed reads that raise ``ModelFileError``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def integer(self, key: str, default: int | None = None, *, least: int = 0, most: int = 1 << 31) -> int:
        """The whole number ``key``, in ``least..most``; ``default`` where the file does not state it."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelFileError(f"{key} is {value!r}; a whole number from {least} to {most} is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The finite number ``key``, greater than 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ModelFileError(f"{key} is {value!r}; a finite number above 0 is needed")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """The string ``key``."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ModelFileError(f"{key} is {value!r}; text is needed")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The boolean ``key``."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"{key} is {value!r}; true or false is needed")
        return value

    def numbers(self, key: str) -> npt.NDArray[np.integer[Any]]:
        """The array of whole numbers ``key``; empty where the file does not state it."""
        value = np.asarray(self._values.get(key, np.empty(0, np.int32)))
        if value.ndim != 1 or (value.size and value.dtype.kind not in "iu"):
            raise ModelFileError(f"{key} is not a list of whole numbers")
        return value

    def strings(self, key: str) -> Iterable[str]:
        """The array of strings ``key``, decoded from the file at each pass over it."""
        value = self._value(key, None)
        if isinstance(value, (str, np.ndarray)) or not hasattr(value, "__iter__"):
            raise ModelFileError(f"{key} is not a list of strings")
        strings: Iterable[str] = value
        return strings

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise ModelFileError(f"the file does not state {key}, which a runnable model needs")
        return value
