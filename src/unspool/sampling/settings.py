"""The settings that make a chain of rules: by the names that a caller uses, without a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from unspool.errors import ParameterError, shown
from unspool.sampling.chain import Chain
from unspool.sampling.presets import DEFAULT, PRESETS, Preset
from unspool.sampling.rules import (
    AdaptiveP,
    AllowedTokens,
    BadWords,
    Custom,
    Dry,
    DynamicTemperature,
    Epsilon,
    Eta,
    FrequencyPenalty,
    LogitBias,
    MinimumTokens,
    MinP,
    Mirostat,
    NoRepeatNgram,
    PLess,
    PresencePenalty,
    Processor,
    RepetitionPenalty,
    Rule,
    Scope,
    TailFree,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Witness,
    Xtc,
    ZeroTemperature,
)
from unspool.sampling.rules.rule import require


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """What a chain is compiled from. ``None``, and the value that a rule calls off, compile to nothing.

    Each setting means what it means in ``SamplingParams``, with words made token ids.
    """

    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    penalty_scope: Scope | Mapping[str, Scope] | None = None
    """One scope for repetition, frequency and presence penalties, n-grams and DRY, or one by each's name;
    ``None``: the preset's, by default "output", for DRY "all"."""
    dry_multiplier: float | None = None
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_breakers: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram_size: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int | None = None
    """``None`` and 0 are off."""
    suppress_end: bool = False
    """Whether the text never ends by itself."""
    end_ids: tuple[int, ...] = ()
    """The tokens that end the text."""
    logits_processors: tuple[Processor, ...] = ()
    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float = 1.0
    top_n_sigma: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_a: float | None = None
    tail_free: float | None = None
    top_h: float | None = None
    p_less: bool = False
    xtc_probability: float | None = None
    xtc_threshold: float = 0.1
    mirostat: int | None = None
    """1 or 2; ``None`` and 0 are off."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float | None = None
    adaptive_decay: float = 0.9
    order: str | Sequence[str] | None = None
    """A preset's name, or the names of rules, each at most once, which must name every rule that is on;
    ``None``: the default order."""


def compile_chain(settings: RuleSettings) -> Chain:
    """The chain of a request's settings.

    Raises ``ParameterError`` for a value out of range, an unknown preset, an order with an unknown or
    repeated name, or one that leaves out a rule that is on.
    """
    preset = preset_of(settings.order)
    on: dict[str, tuple[Rule, ...]] = {}
    for name, make in MAKERS.items():
        made = make(settings, preset)
        if made is not None and not made.is_off:
            on[name] = (Witness(), made) if name in CLOSING else (made,)
    order = preset.order_at(settings.temperature)
    check_order(order, known=MAKERS, needed=on, what=settings.order)
    return Chain(tuple(rule for name in order for rule in on.get(name, ())))


def preset_of(order: str | Sequence[str] | None) -> Preset:
    """The preset of a name, or the default one in another order."""
    if order is None:
        return DEFAULT
    if isinstance(order, str):
        if order not in PRESETS:
            raise ParameterError(
                f"order must be a tuple of rule names or one of {', '.join(PRESETS)}, not {shown(order)}"
            )
        return PRESETS[order]
    return DEFAULT.ordered(tuple(order))


CLOSING = ("mirostat", "adaptive_p")
"""The rules that end a chain, and learn from what is drawn."""


def _scope(settings: RuleSettings, preset: Preset, name: str) -> Scope:
    given = settings.penalty_scope
    if isinstance(given, Mapping):
        given = given.get(name)
    return preset.scopes[name] if given is None else given


def _temperature(s: RuleSettings, preset: Preset) -> Rule | None:
    fixed: Rule | None = None
    if s.temperature is not None:
        fixed = ZeroTemperature() if s.temperature == 0 else Temperature(s.temperature)
    if s.dynatemp_range is not None:
        require("dynatemp_range", s.dynatemp_range, 0 <= s.dynatemp_range <= 1e9, "from 0 (off) to 1e9")
        middle = 1.0 if s.temperature is None else s.temperature
        low, high = max(0.0, middle - s.dynatemp_range), middle + s.dynatemp_range
        dynamic = DynamicTemperature(low, high, s.dynatemp_exponent)  # off or not, its ranges hold
        if s.dynatemp_range:
            if not preset.dynamic_temperature:
                raise ParameterError(
                    f"dynatemp_range is set, but the order of {s.order!r} has no place for it"
                )
            return dynamic
    return fixed


def _mirostat(s: RuleSettings, preset: Preset) -> Rule | None:
    if s.mirostat is None:
        return None
    version = s.mirostat or 2  # off or not, its ranges hold
    rule = Mirostat(version, s.mirostat_tau, s.mirostat_eta, preset.mirostat_renormalized)
    return rule if s.mirostat else None


def _minimum_tokens(s: RuleSettings, preset: Preset) -> Rule | None:
    count = None if s.suppress_end else s.min_tokens or 0
    return MinimumTokens(count, s.end_ids)


Maker = Callable[[RuleSettings, Preset], Rule | None]


def _penalty(name: str, rule: Callable[[float, Scope], Rule]) -> Maker:
    """The maker of a penalty, whose setting has the rule's name."""

    def make(settings: RuleSettings, preset: Preset) -> Rule | None:
        value: float | None = getattr(settings, name)
        return None if value is None else rule(value, _scope(settings, preset, name))

    return make


MAKERS: dict[str, Maker] = {
    "repetition_penalty": _penalty("repetition_penalty", RepetitionPenalty),
    "frequency_penalty": _penalty("frequency_penalty", FrequencyPenalty),
    "presence_penalty": _penalty("presence_penalty", PresencePenalty),
    "dry": lambda s, p: (
        None
        if s.dry_multiplier is None
        else Dry(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_breakers, _scope(s, p, "dry"))
    ),
    "no_repeat_ngram": lambda s, p: (
        None
        if not s.no_repeat_ngram_size
        else NoRepeatNgram(s.no_repeat_ngram_size, _scope(s, p, "no_repeat_ngram"))
    ),
    "bad_words": lambda s, p: BadWords(s.bad_words, p.bad_words_scope),
    "logit_bias": lambda s, p: LogitBias(s.logit_bias),
    "allowed_tokens": lambda s, p: (
        None if s.allowed_token_ids is None else AllowedTokens(s.allowed_token_ids)
    ),
    "minimum_tokens": _minimum_tokens,
    "custom": lambda s, p: Custom(s.logits_processors),
    "temperature": _temperature,
    "top_n_sigma": lambda s, p: None if s.top_n_sigma is None else TopNSigma(s.top_n_sigma),
    "min_p": lambda s, p: None if s.min_p is None else MinP(s.min_p),
    "top_k": lambda s, p: TopK(s.top_k, p.top_k_ties) if s.top_k else None,
    "top_p": lambda s, p: None if s.top_p is None else TopP(s.top_p, p.top_p_ties, p.top_p_strict),
    "typical_p": lambda s, p: None if s.typical_p is None else Typical(s.typical_p, p.typical_ties),
    "epsilon_cutoff": lambda s, p: None if s.epsilon_cutoff is None else Epsilon(s.epsilon_cutoff),
    "eta_cutoff": lambda s, p: None if s.eta_cutoff is None else Eta(s.eta_cutoff),
    "top_a": lambda s, p: None if s.top_a is None else TopA(s.top_a),
    "tail_free": lambda s, p: None if s.tail_free is None else TailFree(s.tail_free),
    "top_h": lambda s, p: None if s.top_h is None else TopH(s.top_h, p.top_h_cap, p.top_h_summed),
    "p_less": lambda s, p: PLess() if s.p_less else None,
    "xtc": lambda s, p: None if s.xtc_probability is None else Xtc(s.xtc_probability, s.xtc_threshold),
    "mirostat": _mirostat,
    "adaptive_p": lambda s, p: (
        None if s.adaptive_target is None else AdaptiveP(s.adaptive_target, s.adaptive_decay)
    ),
}
"""How each rule that an order may name is made; ``None`` where nothing turns it on."""


SETTINGS = {
    "dry": "dry_multiplier",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "allowed_tokens": "allowed_token_ids",
    "minimum_tokens": "min_tokens or suppress_eos",
    "custom": "logits_processors",
    "xtc": "xtc_probability",
    "adaptive_p": "adaptive_target",
}
"""What turns a rule on, where that has another name."""


def check_order(order: Sequence[str], known: Collection[str], needed: Collection[str], what: object) -> None:
    """Raise ``ParameterError`` for an order that names a rule wrongly or leaves one out that is on."""
    for name in order:
        if name not in known:
            raise ParameterError(f"order names {shown(name)}, which is no rule; rules are {', '.join(known)}")
    if len(set(order)) < len(order):
        raise ParameterError(f"order names a rule twice: {', '.join(order)}")
    closing = [name for name in order if name in CLOSING]
    if closing and tuple(order[-len(closing) :]) != tuple(closing):
        raise ParameterError(f"{' and '.join(closing)} must come last in order, not before other rules")
    for name in needed:
        if name not in order:
            where = f"the order of {what!r}" if isinstance(what, str) else f"order ({', '.join(order)})"
            setting = SETTINGS.get(name, name)
            rule = "" if setting == name else f" ({name})"
            raise ParameterError(f"{setting} is set, but {where} has no place for it{rule}")
    if all(name in needed for name in CLOSING):
        raise ParameterError("mirostat and adaptive_target each end a chain: give one of them")
