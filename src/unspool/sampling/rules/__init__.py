"""The rules that a chain is made of, one a file: each reads like its definition."""

from unspool.sampling.plan import RuleKind
from unspool.sampling.rules.min_p import MinP
from unspool.sampling.rules.repetition_penalty import RepetitionPenalty
from unspool.sampling.rules.rule import LogitsRow, Rule, RuleState
from unspool.sampling.rules.temperature import Temperature
from unspool.sampling.rules.top_k import TopK
from unspool.sampling.rules.top_p import TopP

__all__ = [
    "LogitsRow",
    "MinP",
    "RepetitionPenalty",
    "Rule",
    "RuleState",
    "Temperature",
    "TopK",
    "TopP",
    "rule_of",
]


def rule_of(kind: int, value: float) -> Rule:
    """The rule of one entry of a compiled chain; ``ParameterError`` for a value out of its range."""
    match RuleKind(kind):
        case RuleKind.REPETITION_PENALTY:
            return RepetitionPenalty(value)
        case RuleKind.TEMPERATURE:
            return Temperature(value)
        case RuleKind.TOP_K:
            return TopK(value)
        case RuleKind.TOP_P:
            return TopP(value)
        case RuleKind.MIN_P:
            return MinP(value)
