"""Writing a model's text to a terminal or a pipe."""

from __future__ import annotations

import sys

_CONTROLS = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t\r"}


def write(text: str) -> None:
    """Write to standard output at once; a terminal is not given control characters."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line about the work, not of it, to standard error."""
    print(text, file=sys.stderr, flush=True)
