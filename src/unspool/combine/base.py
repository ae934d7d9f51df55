"""What a combination is: the tracks that a branch's tokens run through, and what becomes of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from unspool.combine.source import Source

if TYPE_CHECKING:
    from unspool.model.spec import ModelSpec


class Place(NamedTuple):
    """Where a source is to be: the request that its tracks are of, and what else is there."""

    prompt: Sequence[int]
    spec: ModelSpec
    """Of the model that the request is to."""
    attach: Callable[[Any], str]
    """Gives an ``LLM`` a place beside the request's own model, and the name of its backend there."""


class Combination(Protocol):
    """What a caller gives as ``SamplingParams.source``."""

    def tracks(self, place: Place) -> Source:
        """The tracks of a request. Raises ``ParameterError`` where the models or layers do not fit."""
        ...
