"""The rules that a chain is made of, one a file: each reads like its definition."""

from collections.abc import Callable, Sequence

from unspool.sampling.plan import RuleKind, Ties
from unspool.sampling.rules.adaptive_p import AdaptiveP
from unspool.sampling.rules.allowed_tokens import AllowedTokens
from unspool.sampling.rules.bad_words import BadWords
from unspool.sampling.rules.custom import Custom, Processor
from unspool.sampling.rules.dry import Dry
from unspool.sampling.rules.dynamic_temperature import DynamicTemperature
from unspool.sampling.rules.edit import Add, Allow, Ban
from unspool.sampling.rules.epsilon import Epsilon
from unspool.sampling.rules.eta import Eta
from unspool.sampling.rules.frequency_penalty import FrequencyPenalty
from unspool.sampling.rules.logit_bias import LogitBias
from unspool.sampling.rules.min_p import MinP
from unspool.sampling.rules.minimum_tokens import MinimumTokens
from unspool.sampling.rules.mirostat import Mirostat, keep_by_zipf
from unspool.sampling.rules.no_repeat_ngram import NoRepeatNgram
from unspool.sampling.rules.p_less import PLess
from unspool.sampling.rules.presence_penalty import PresencePenalty
from unspool.sampling.rules.repetition_penalty import RepetitionPenalty
from unspool.sampling.rules.rule import Facts, Inputs, LogitsRow, Memory, NoiseSource, Rule
from unspool.sampling.rules.scope import Scope
from unspool.sampling.rules.tail_free import TailFree
from unspool.sampling.rules.temperature import Temperature, ZeroTemperature
from unspool.sampling.rules.top_a import TopA
from unspool.sampling.rules.top_h import TopH
from unspool.sampling.rules.top_k import TopK
from unspool.sampling.rules.top_n_sigma import TopNSigma
from unspool.sampling.rules.top_p import TopP
from unspool.sampling.rules.typical import Typical
from unspool.sampling.rules.witness import Witness
from unspool.sampling.rules.xtc import Xtc

__all__ = [
    "AdaptiveP",
    "AllowedTokens",
    "BadWords",
    "Custom",
    "Dry",
    "DynamicTemperature",
    "Epsilon",
    "Eta",
    "Facts",
    "FrequencyPenalty",
    "Inputs",
    "LogitBias",
    "LogitsRow",
    "Memory",
    "MinP",
    "MinimumTokens",
    "Mirostat",
    "NoRepeatNgram",
    "NoiseSource",
    "PLess",
    "PresencePenalty",
    "Processor",
    "RepetitionPenalty",
    "Rule",
    "Scope",
    "TailFree",
    "Temperature",
    "TopA",
    "TopH",
    "TopK",
    "TopNSigma",
    "TopP",
    "Typical",
    "Witness",
    "Xtc",
    "ZeroTemperature",
    "apply_entry",
]


Apply = Callable[[Sequence[float], LogitsRow, Inputs], None]

APPLY: dict[RuleKind, Apply] = {
    RuleKind.REPETITION_PENALTY: lambda v, row, inputs: RepetitionPenalty(v[0]).apply(row, inputs),
    RuleKind.TEMPERATURE: lambda v, row, inputs: Temperature(v[0]).apply(row, inputs),
    RuleKind.TOP_K: lambda v, row, inputs: TopK(v[0], Ties(int(v[1]))).apply(row, inputs),
    RuleKind.TOP_P: lambda v, row, inputs: TopP(v[0], Ties(int(v[1])), bool(v[2])).apply(row, inputs),
    RuleKind.MIN_P: lambda v, row, inputs: MinP(v[0]).apply(row, inputs),
    RuleKind.ADD: lambda v, row, inputs: Add().apply(row, inputs),
    RuleKind.BAN: lambda v, row, inputs: Ban().apply(row, inputs),
    RuleKind.ALLOW: lambda v, row, inputs: Allow().apply(row, inputs),
    RuleKind.DYNAMIC_TEMPERATURE: lambda v, row, inputs: DynamicTemperature(*v).apply(row, inputs),
    RuleKind.TOP_N_SIGMA: lambda v, row, inputs: TopNSigma(v[0]).apply(row, inputs),
    RuleKind.TYPICAL: lambda v, row, inputs: Typical(v[0], Ties(int(v[1]))).apply(row, inputs),
    RuleKind.EPSILON: lambda v, row, inputs: Epsilon(v[0]).apply(row, inputs),
    RuleKind.ETA: lambda v, row, inputs: Eta(v[0]).apply(row, inputs),
    RuleKind.TOP_A: lambda v, row, inputs: TopA(v[0]).apply(row, inputs),
    RuleKind.TAIL_FREE: lambda v, row, inputs: TailFree(v[0]).apply(row, inputs),
    RuleKind.TOP_H: lambda v, row, inputs: TopH(v[0], int(v[1]), bool(v[2])).apply(row, inputs),
    RuleKind.P_LESS: lambda v, row, inputs: PLess().apply(row, inputs),
    RuleKind.XTC: lambda v, row, inputs: Xtc(v[0], v[1]).apply(row, inputs),
    RuleKind.MIROSTAT_1: lambda v, row, inputs: keep_by_zipf(row, v[0]),
    RuleKind.ADAPTIVE_P: lambda v, row, inputs: AdaptiveP(v[0]).apply(row, inputs),
    RuleKind.WITNESS: lambda v, row, inputs: Witness().apply(row, inputs),
}
"""What an entry of each kind does to a row, by its values."""


def apply_entry(kind: int, values: Sequence[float], row: LogitsRow, inputs: Inputs) -> None:
    """Do to a row what one entry of a compiled chain says; ``values`` are all ``NUM_VALUES`` of them.

    Raises ``ParameterError`` for a value out of its range, ``ValueError`` for an unknown kind.
    """
    APPLY[RuleKind(kind)](values, row, inputs)
