"""Writing a model's text to a terminal or a pipe."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from unspool.errors import ParameterError, SettingsWarning

_CONTROLS = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t\r"}


def write(text: str) -> None:
    """Write to standard output at once; a terminal is not given control characters."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def as_text(given: str, source: str) -> str:
    """What came from outside, if it is text: Python stands half surrogate pairs for bytes that are none.

    Raises ``ParameterError``, naming ``source``.
    """
    for at, character in enumerate(given):
        if "\udc80" <= character <= "\udcff":
            raise ParameterError(
                f"{source} is not text: it holds the byte 0x{ord(character) - 0xDC00:02X} at character {at}, "
                f"which is not {sys.getfilesystemencoding()}"
            )
    return given


def note(text: str) -> None:
    """Write a line about the work, not of it, to standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Within it a warning about settings is a note, and comes once; others are as they were."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", SettingsWarning)
        shown_before = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category is not SettingsWarning:
                shown_before(message, category, filename, lineno, file, line)
            elif str(message) not in said:
                said.add(str(message))
                note(f"note: {message}")

        warnings.showwarning = show
        yield
