"""Which finished candidates are returned. Pure: no engine, no file."""

from unspool.select.base import Choice, Selection

__all__ = ["Choice", "Selection"]
