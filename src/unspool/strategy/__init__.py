"""How a request's branches grow from what their rows gave. Pure: no engine, no cache, no file."""

from unspool.strategy.base import Branches, Figures, Method, Offer, Ranked, RowResult, RowWant, Strategy, Task
from unspool.strategy.sample import Sample

__all__ = [
    "Branches",
    "Figures",
    "Method",
    "Offer",
    "Ranked",
    "RowResult",
    "RowWant",
    "Sample",
    "Strategy",
    "Task",
]
