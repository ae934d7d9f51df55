"""Values that a setting may be given by mistake or by malice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Contrary:
    """Neither equal nor unequal to anything, nor true or false."""

    __hash__ = None  # type: ignore[assignment]  # as an array

    def __eq__(self, _: object) -> bool:
        raise RuntimeError("ask me not")

    def __bool__(self) -> bool:
        raise RuntimeError("ask me not")

    def __index__(self) -> int:
        raise RuntimeError("ask me not")

    def __float__(self) -> float:
        raise RuntimeError("ask me not")

    def __repr__(self) -> str:
        raise RuntimeError("ask me not")


NO_TEXTS: list[Any] = ["", "x", "1", "9" * 5000, "²", "x" * 10**5, b"", b"x", bytearray(b"x")]
NO_SCALARS: list[Any] = [False, True, 0, -1, 1, 2.5, math.nan, math.inf, -math.inf, 1j, 10**400, -(10**5000)]
OF_NUMPY: list[Any] = [
    *(np.int64(2), np.int64(-1), np.float32(0.5), np.float64("nan"), np.True_, np.str_("x"), np.complex64(1)),
    *(
        np.array(2),
        np.array(0.5),
        np.array("0.5"),
        np.array(True),
        np.array([]),
        np.array([1]),
        np.array([1, 2]),
    ),
    *(np.array([[1, 2], [3, 4]]), np.array([[1, 0.5]]), np.array([None]), np.array(["x"])),
    *(np.datetime64(0, "s"), np.timedelta64(3, "s"), np.dtype("f4")),
]
NESTED: list[Any] = [
    *([], [[]], [[[]]], [1], [[1]], [[[10]], -2.0], [[[[10]], -2.0]], [[[10], -2.0]], [[[10], "x"]], [None]),
    *([[None, None]], [["x", 1.0]], ["x"], [""], [5.5], [True], [[True, 1.0]], [[1, True]], [-1], [10**5000]),
    *(
        [[10**5000, 1.0]],
        [np.array([1, 2])],
        [[np.array([1, 2]), 1.0]],
        [[1, np.array([1, 2])]],
        [Contrary()],
    ),
    *([[Contrary(), 1.0]], [[1, Contrary()]], ({1}, 2), {1, 2}, frozenset("x"), range(2), memoryview(b"x")),
    *({}, {1: 2}, {"9" * 5000: 1}, {"x": 1}, {(1,): 1.0}, {(1, 2): 1.0}, {(): 1.0}, {None: None}, {1: [1]}),
    *({10**5000: 1.0}, {"type": np.array([1, 2])}, {"type": "text"}),
]
OTHERS: list[Any] = [int, str, Contrary, Contrary(), len, ..., NotImplemented, object(), math]
ODD = [*NO_TEXTS, *NO_SCALARS, *OF_NUMPY, *NESTED, *OTHERS]
