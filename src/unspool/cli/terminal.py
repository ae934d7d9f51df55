"""Writing a model's text to a terminal or a pipe."""

from __future__ import annotations

import sys

from unspool.errors import ParameterError

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
