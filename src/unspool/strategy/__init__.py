"""How a request's branches grow from what their rows gave. Pure: no engine, no cache, no file."""

from unspool.strategy.base import (
    Branches,
    Figures,
    Law,
    Method,
    Offer,
    Ranked,
    RowResult,
    RowWant,
    Strategy,
    Task,
)
from unspool.strategy.contrastive import Contrastive
from unspool.strategy.exact import Exact
from unspool.strategy.sample import Sample
from unspool.strategy.stochastic_beam import StochasticBeam

__all__ = [
    "Branches",
    "Contrastive",
    "Exact",
    "Figures",
    "Law",
    "Method",
    "Offer",
    "Ranked",
    "RowResult",
    "RowWant",
    "Sample",
    "StochasticBeam",
    "Strategy",
    "Task",
]
