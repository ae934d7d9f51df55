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
from unspool.strategy.beam import Beam
from unspool.strategy.contrastive import Contrastive
from unspool.strategy.diverse import DiverseBeam
from unspool.strategy.exact import Exact
from unspool.strategy.sample import Sample
from unspool.strategy.sampled import BeamSample
from unspool.strategy.stochastic_beam import StochasticBeam
from unspool.strategy.tree import Tree

__all__ = [
    "Beam",
    "BeamSample",
    "Branches",
    "Contrastive",
    "DiverseBeam",
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
    "Tree",
]
