"""Which of a request's finished candidates are returned. Pure: no engine, no file."""

from unspool.select.base import Choice, Chooser, Selection, Tally
from unspool.select.best_of import BestOf
from unspool.select.mbr import MBR
from unspool.select.vote import Vote

__all__ = ["MBR", "BestOf", "Choice", "Chooser", "Selection", "Tally", "Vote"]
