"""unspool: an inference engine for decoder-only language models whose subject is decoding.

    import unspool

    llm = unspool.LLM("smollm2")
    print(llm.generate("The capital of France is", max_tokens=32))

Names are imported when they are first used, so that ``import unspool`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unspool.errors import (
    BackendError,
    ContextLengthError,
    ModelFileError,
    ModelNotFoundError,
    ParameterError,
    RowError,
    SearchError,
    SettingsWarning,
    UnspoolError,
)

if TYPE_CHECKING:
    from unspool.async_llm import AsyncLLM
    from unspool.combine import ContrastiveDecoding, DoLa
    from unspool.engine.stats import EngineStats
    from unspool.llm import LLM
    from unspool.params import SamplingParams
    from unspool.results import (
        Alternative,
        Candidate,
        Chunk,
        Distribution,
        Generation,
        PromptToken,
        RuleTrace,
        Score,
        Spread,
        Timing,
        Token,
        Usage,
    )
    from unspool.select import MBR, BestOf, Choice, Vote
    from unspool.strategy import Beam, BeamSample, Contrastive, DiverseBeam, Exact, StochasticBeam, Tree

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "MBR",
    "Alternative",
    "AsyncLLM",
    "BackendError",
    "Beam",
    "BeamSample",
    "BestOf",
    "Candidate",
    "Choice",
    "Chunk",
    "ContextLengthError",
    "Contrastive",
    "ContrastiveDecoding",
    "Distribution",
    "DiverseBeam",
    "DoLa",
    "EngineStats",
    "Exact",
    "Generation",
    "ModelFileError",
    "ModelNotFoundError",
    "ParameterError",
    "PromptToken",
    "RowError",
    "RuleTrace",
    "SamplingParams",
    "Score",
    "SearchError",
    "SettingsWarning",
    "Spread",
    "StochasticBeam",
    "Timing",
    "Token",
    "Tree",
    "UnspoolError",
    "Usage",
    "Vote",
]

_HOMES = {
    "LLM": "unspool.llm",
    "AsyncLLM": "unspool.async_llm",
    "EngineStats": "unspool.engine.stats",
    "SamplingParams": "unspool.params",
    **dict.fromkeys(
        (
            "Alternative",
            "Candidate",
            "Chunk",
            "Distribution",
            "Generation",
            "PromptToken",
            "RuleTrace",
            "Score",
            "Spread",
            "Timing",
            "Token",
            "Usage",
        ),
        "unspool.results",
    ),
    **dict.fromkeys(
        ("Beam", "BeamSample", "Contrastive", "DiverseBeam", "Exact", "StochasticBeam", "Tree"),
        "unspool.strategy",
    ),
    **dict.fromkeys(("BestOf", "Choice", "MBR", "Vote"), "unspool.select"),
    **dict.fromkeys(("ContrastiveDecoding", "DoLa"), "unspool.combine"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unspool' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
