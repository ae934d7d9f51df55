"""What a caller may ask of a generation, checked where it is said."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from unspool import conversion, translation
from unspool.combine.base import Combination
from unspool.errors import ParameterError, shown
from unspool.sampling.rules import Processor, Scope
from unspool.sampling.settings import RuleSettings, compile_chain
from unspool.select.base import Selection
from unspool.strategy.base import Method
from unspool.task_presets import TASK_PRESETS


class Settings(TypedDict, total=False):
    """The keyword arguments of a generation: each means what it means in ``SamplingParams``."""

    preset: str | None
    temperature: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    top_a: float | None
    top_n_sigma: float | None
    tail_free: float | None
    top_h: float | None
    p_less: bool
    xtc_probability: float | None
    xtc_threshold: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    adaptive_target: float | None
    adaptive_decay: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    penalty_scope: Scope | Mapping[str, Scope] | None
    no_repeat_ngram_size: int | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_sequence_breakers: Iterable[str | Iterable[int]] | None
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] | None
    bad_words: Iterable[str | Iterable[int]] | None
    allowed_token_ids: Iterable[int] | None
    min_tokens: int | None
    suppress_eos: bool
    logits_processors: Iterable[Processor] | None
    order: str | Sequence[str] | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    include_stop: bool
    skip_special_tokens: bool
    ignore_eos: bool
    seed: int | None
    n: int
    strategy: Method | None
    source: Combination | None
    guidance_scale: float | None
    negative_prompt: str | Sequence[int] | None
    select: Selection | None
    logprobs: int
    prompt_logprobs: int | None
    trace: bool
    priority: int
    cache_salt: str | None


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are drawn and where they end.

    Rules transform the row of logits in an order (``order``); docs/sampling.md has a table of them. For each
    of them ``None`` means: as the ``preset`` has it; else the model's own default if its file states one;
    else that the rule is off.

    Raises ``ParameterError`` for an unknown name, a wrong type, NaN, a value out of range, a rule that is set
    and has no place in the order, or a setting of a rule that is not on.
    """

    preset: str | None = None
    """Settings for a task, as ``unspool presets`` lists them; whatever is given beside it wins."""
    temperature: float | None = None
    """Divides the logits; 0, or 1e-9 to 1e9. 0 is greedy; 1 is off."""
    dynatemp_range: float | None = None
    """Lets the temperature go from ``temperature`` less this to ``temperature`` and this, by the entropy;
    0 to 1e9, 0 is off."""
    dynatemp_exponent: float | None = None
    """The power of the entropy's share that the dynamic temperature goes by; 0.01 to 100, ``None`` is 1."""
    top_k: int | None = None
    """Keeps the k most probable tokens (Fan et al. 2018); 0 to 2**31 - 1, 0 is off, 1 is greedy."""
    top_p: float | None = None
    """Keeps the smallest set of most probable tokens with mass at least p (Holtzman et al. 2019);
    0 (the most probable alone) to 1 (off)."""
    min_p: float | None = None
    """Keeps tokens at least m times as probable as the best (Nguyen et al. 2024); 0 to 1, 0 is off."""
    typical_p: float | None = None
    """Keeps the smallest set of tokens of the most typical surprise with mass at least t (Meister et al.
    2022); 0 to 1 (off)."""
    epsilon_cutoff: float | None = None
    """Keeps tokens with a probability of at least e (Hewitt et al. 2022); 0 (off) to 1."""
    eta_cutoff: float | None = None
    """Keeps p >= min(e, sqrt(e) exp(-entropy)) (Hewitt et al. 2022); 0 (off) to 1."""
    top_a: float | None = None
    """Keeps p >= a * (largest p)**2; 0 (off) to 1."""
    top_n_sigma: float | None = None
    """Keeps logits within n standard deviations of the largest (Tang et al. 2024); 0 to 1e6."""
    tail_free: float | None = None
    """Cuts where the curve of sorted probabilities has bent to z (Phenix and Egan 2019); 0 to 1 (off)."""
    top_h: float | None = None
    """Keeps the most probable tokens up to a share a of the entropy (2025); 0 to 1."""
    p_less: bool = False
    """Whether to keep p >= the chance that two draws agree (Tan et al. 2025)."""
    xtc_probability: float | None = None
    """How often the top choices are excluded; 0 (off) to 1."""
    xtc_threshold: float | None = None
    """From which probability a token is a top choice; 0 to 1, ``None`` is 0.1."""
    mirostat: int | None = None
    """Version 1 or 2 of mirostat, which holds the surprise at a target (Basu et al. 2021); 0 is off."""
    mirostat_tau: float | None = None
    """The target, in bits; 0.01 to 30, ``None`` is 5."""
    mirostat_eta: float | None = None
    """How fast mirostat learns; 0 to 10, ``None`` is 0.1."""
    adaptive_target: float | None = None
    """Prefers tokens with a probability near this (adaptive-p, 2025); 0 to 1."""
    adaptive_decay: float | None = None
    """How much adaptive-p remembers; 0 to 0.99, ``None`` is 0.9."""
    repetition_penalty: float | None = None
    """Each distinct token in scope has its logit divided by r if positive, multiplied by r if not
    (Keskar et al. 2019); 1e-4 to 1e4, 1 is off."""
    frequency_penalty: float | None = None
    """Subtracted from a token's logit once for each time that it is in scope; -100 to 100, 0 is off."""
    presence_penalty: float | None = None
    """Subtracted from a token's logit if it is in scope; -100 to 100, 0 is off."""
    penalty_scope: Scope | Mapping[str, Scope] | None = None
    """Which tokens a penalty sees: those generated (``"output"``), the prompt's too (``"all"``), or the last
    n of prompt and output (1 to 2**31 - 1); for all rules that have a scope, or by each one's name
    (``{"repetition_penalty": "all"}``). ``None``: the model's own default if its file states one, else the
    order's: by default ``"output"``, and ``"all"`` for DRY. Kept as a tuple of pairs, in the order of
    ``unspool.sampling.presets.DEFAULT_SCOPES``, where it is by name; what that does not name is as with
    ``None``."""
    no_repeat_ngram_size: int | None = None
    """Bans what would complete an n-gram again (Paulus et al. 2017); 0 (off) to 2**31 - 1."""
    dry_multiplier: float | None = None
    """Penalizes going on with a repeat (DRY, 2024): multiplier * base**(length - allowed length); 0 (off) to
    1e4."""
    dry_base: float | None = None
    """1 to 1e4, ``None`` is 1.75."""
    dry_allowed_length: int | None = None
    """Repeats shorter than this are free; 1 to 2**31 - 1, ``None`` is 2."""
    dry_sequence_breakers: Iterable[str | Iterable[int]] | None = None
    """What no repeat reaches back over: strings, or lists of token ids. ``None``: line feed, colon, quotation
    mark, asterisk. Kept as a tuple."""
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] | None = ()
    """What to add to tokens' logits, by token id: up to 1e6, -inf bans. Kept as a tuple of pairs by id."""
    bad_words: Iterable[str | Iterable[int]] | None = ()
    """What is never said: strings, or lists of token ids. A string is banned as the tokens that it is encoded
    to, with and without a space before it: other ways to spell it remain. Kept as a tuple."""
    allowed_token_ids: Iterable[int] | None = None
    """The only tokens that may be drawn. Kept as a tuple."""
    min_tokens: int | None = None
    """How many tokens come before an end-of-text or stop token may; 0 to 2**31 - 1."""
    suppress_eos: bool = False
    """Whether end-of-text and stop tokens are never drawn. (``ignore_eos`` goes on past them.)"""
    logits_processors: Iterable[Processor] | None = ()
    """Rules of your own, ``f(token_ids, logits) -> logits``, at ``custom`` in the order. Kept as a tuple."""
    order: str | Sequence[str] | None = None
    """In which order rules see the row: their names, or the engine whose law is wanted (``"transformers"``,
    ``"vllm"``, ``"sglang"``, ``"llama.cpp"``, ``"openvino"``, ``"mlx"``), which sets its scopes and
    boundaries too. ``None``: ``unspool.sampling.presets.DEFAULT_ORDER``. Names are a list or a tuple, and are
    kept as a tuple."""
    max_tokens: int | None = None
    """The most tokens to generate; 1 to 2**31 - 1. ``None``: up to 256, or fewer where the context ends
    (for a chat's reply, 1024). With a value, prompt and ``max_tokens`` must fit in the context."""
    stop: str | Iterable[str] | None = ()
    """One or more strings that end the text. The first to be completed wins, the longest of those that
    the same character completes. Kept as a tuple."""
    stop_token_ids: Iterable[int] | None = ()
    """Token ids that end the text, beside the model's end-of-text tokens. Kept as a tuple."""
    include_stop: bool = False
    """Whether the stop string or token that ended the text stays in the result."""
    skip_special_tokens: bool = True
    """Whether special tokens leave no text."""
    ignore_eos: bool = False
    """Whether to go on past the model's end-of-text tokens: for measuring."""
    seed: int | None = None
    """Fixes every draw; 0 to 2**64 - 1. ``None``: drawn, and returned with the result."""
    n: int = 1
    """How many results to return; 1 to 4096. Samples differ under one seed; a search's come best first."""
    strategy: Method | None = None
    """How branches grow: ``None`` draws each token; else a search, such as ``Beam(width=4)``."""
    source: Combination | None = None
    """What else the rows are made of: ``ContrastiveDecoding(amateur)``, ``DoLa()``."""
    guidance_scale: float | None = None
    """Classifier-free guidance (Sanchez et al. 2023): logits are u + g (c - u), with u those after the
    negative prompt; 0 to 1e4, 1 is off."""
    negative_prompt: str | Sequence[int] | None = None
    """What guidance leads away from: text or token ids (in a chat, a user's message). ``None``: the prompt's
    last token alone, as in Transformers."""
    select: Selection | None = None
    """How one of many samples is chosen: ``BestOf(8)``, ``MBR(16)``, ``Vote(16, extract=...)``."""
    logprobs: int = 0
    """How many of the most probable tokens to report beside each drawn one; 0 to 32."""
    prompt_logprobs: int | None = None
    """Whether to report how probable the prompt's tokens were, and how many of the most probable ones beside
    each; 0 to 32. The whole prompt is then computed anew."""
    trace: bool = False
    """Whether to report what each rule did to each token's row. It costs time."""
    priority: int = 0
    """Which requests go first where not all can: those of a higher priority, then those that came first;
    -2**31 to 2**31 - 1. Tokens do not depend on it."""
    cache_salt: str | None = None
    """Requests share the cache of what their prompts have in common only under the same salt: a tenant with a
    salt of its own cannot learn from its waiting times what others have asked. Tokens do not depend on it."""

    def __new__(cls, *_: Any, **settings: Any) -> SamplingParams:
        """Refuse an unknown name before ``__init__`` would, and say which one may be meant."""
        check_names(settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, conversion.number(name, getattr(self, name)))
        for name in conversion.RANGES:
            value = getattr(self, name)
            if name != "penalty_scope" and (value is not None or name in _NEVER_NONE):
                object.__setattr__(self, name, conversion.whole(name, value))
        for name in ("p_less", "suppress_eos", "include_stop", "skip_special_tokens", "ignore_eos", "trace"):
            conversion.flag(name, getattr(self, name))
        for name, convert in _LISTED.items():
            object.__setattr__(self, name, convert(name, getattr(self, name)))
        self._check_methods()
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise conversion.refuse("cache_salt", self.cache_salt, "a string")
        if self.preset is not None:
            conversion.choice("preset", self.preset, tuple(TASK_PRESETS))
        self._check_companions()
        compile_chain(self.rule_settings(end_ids=(0,), words=False))  # checks ranges and order

    def _check_methods(self) -> None:
        """Refuse what is no strategy, source or selection, and what has no meaning beside them."""
        for name, needed in _METHODS.items():
            if getattr(self, name) is not None:
                conversion.able(name, getattr(self, name), needed, METHODS_ALLOWED[name])
        if self.select is not None and self.n != 1:
            raise ParameterError(
                f"n={self.n} and select={shown(self.select)}: a selection says how many it chooses from, and "
                "all of them are returned, best first"
            )
        if self.guidance_scale is not None and not 0 <= self.guidance_scale <= 1e4:
            raise conversion.refuse("guidance_scale", self.guidance_scale, "a number from 0 to 1e4")
        if self.negative_prompt is not None and not isinstance(self.negative_prompt, str):
            ids = conversion.token_ids("negative_prompt", self.negative_prompt)
            object.__setattr__(self, "negative_prompt", ids)
        if self.guidance_scale is not None and self.source is not None:
            raise ParameterError("guidance_scale and source both say what rows are made of: give one of them")

    def _check_companions(self) -> None:
        """Refuse a setting of a rule that nothing turns on: it would be dropped in silence."""
        for name, switch in _COMPANIONS.items():
            if getattr(self, name) is not None and getattr(self, switch) is None:
                raise ParameterError(f"{name} is set, but {switch} is not: it would do nothing")

    def with_defaults(self, model_settings: Settings) -> SamplingParams:
        """The same with the preset's settings, and then the model's, in place of what is ``None``.

        A scope by rules' names is filled up in the same way with those of the rules that it does not name.
        """
        defaults = {**model_settings, **({} if self.preset is None else TASK_PRESETS[self.preset].settings)}
        if isinstance(self.order, str):
            defaults.pop("penalty_scope", None)  # an engine's law has scopes of its own
        missing: dict[str, Any] = {
            name: value for name, value in defaults.items() if getattr(self, name) is None
        }
        scope: Any = self.penalty_scope
        if isinstance(scope, tuple) and "penalty_scope" in defaults:
            missing["penalty_scope"] = conversion.scope_within(scope, defaults["penalty_scope"])
        return replace(self, **missing) if missing else self

    def rule_settings(self, end_ids: Iterable[int], words: bool = True) -> RuleSettings:
        """What its chain is compiled from.

        end_ids: the tokens that end the text.
        words: whether bad words and sequence breakers are token ids by now; if not, stand-ins replace them.
        """
        given: dict[str, Any] = {
            name: getattr(self, name) for name in _RULE_NAMES if getattr(self, name) is not None
        }
        if isinstance(given.get("penalty_scope"), tuple):
            given["penalty_scope"] = dict(given["penalty_scope"])
        given["bad_words"] = self.bad_words if words else ((0,),) * len(tuple(self.bad_words or ()))
        given["dry_breakers"] = self.dry_sequence_breakers or () if words and self.dry_multiplier else ()
        return RuleSettings(**given, suppress_end=self.suppress_eos, end_ids=tuple(end_ids))

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """The token ids that each setting holds, by its name.

        Raises ``ParameterError`` where a word is still a string, which ``LLM`` makes token ids of.
        """
        breakers = DEFAULT_BREAKERS if self.dry_sequence_breakers is None else self.dry_sequence_breakers
        words = {
            "bad_words": self.bad_words or (),
            "dry_sequence_breakers": breakers if self.dry_multiplier else (),
        }
        listed: dict[str, tuple[int, ...]] = {
            "stop_token_ids": self.stop_ids,
            "allowed_token_ids": tuple(self.allowed_token_ids or ()),
            "logit_bias": tuple(pair[0] for pair in conversion.pairs(self.logit_bias)),
        }
        for name, given in words.items():
            if any(isinstance(word, str) for word in given):
                raise ParameterError(
                    f"{name} holds text, which an engine does not know: LLM makes token ids of it, as does "
                    "unspool.words.Words(tokenizer).with_token_ids(params)"
                )
            listed[name] = tuple(token for word in given for token in word)  # type: ignore[misc]
        return listed

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as the tuple that it is kept as."""
        return tuple(self.stop or ())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """``stop_token_ids`` as the tuple that it is kept as."""
        return tuple(self.stop_token_ids or ())

    @classmethod
    def of(cls, params: SamplingParams | None, settings: Settings) -> SamplingParams:
        """``params`` (or the defaults) with ``settings`` in place of its own.

        Raises ``ParameterError`` where ``params`` is no ``SamplingParams`` or a setting is refused.
        """
        if params is not None and not isinstance(params, SamplingParams):
            raise ParameterError(
                f"params must be a SamplingParams, not {shown(params)}; settings may also be given by name"
            )
        check_names(dict(settings))
        return cls(**settings) if params is None else replace(params, **settings)

    @classmethod
    def from_transformers(cls, config: Any) -> SamplingParams:
        """What a Transformers ``GenerationConfig``, or a mapping of its settings, means.

        Raises ``ParameterError`` naming every setting that has no equal here.
        """
        return cls(**translation.from_transformers(config))

    @classmethod
    def from_vllm(cls, settings: Mapping[str, Any]) -> SamplingParams:
        """What the settings of vLLM's ``SamplingParams`` mean. Raises as ``from_transformers``."""
        return cls(**translation.from_vllm(settings))

    @classmethod
    def from_llama_cpp(cls, settings: Mapping[str, Any]) -> SamplingParams:
        """What the settings of llama.cpp's server mean. Raises as ``from_transformers``."""
        return cls(**translation.from_llama_cpp(settings))

    @classmethod
    def from_openai(cls, settings: Mapping[str, Any]) -> SamplingParams:
        """What the settings of an OpenAI request mean. Raises as ``from_transformers``."""
        return cls(**translation.from_openai(settings))


_NAMES = tuple(field.name for field in fields(SamplingParams))

_NUMBERS = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_a",
    "top_n_sigma",
    "tail_free",
    "top_h",
    "xtc_probability",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "dry_base",
    "guidance_scale",
)
"""Settings that are real numbers; their ranges are the rules' own to check."""

_RULE_NAMES = tuple(field.name for field in fields(RuleSettings) if field.name in _NAMES)

_COMPANIONS = {
    "dynatemp_exponent": "dynatemp_range",
    "xtc_threshold": "xtc_probability",
    "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
    "adaptive_decay": "adaptive_target",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
    "negative_prompt": "guidance_scale",
}
"""Settings of a rule, and the one that turns it on."""

_METHODS = {"strategy": "uses_model_settings", "source": "tracks", "select": "n"}
"""What each kind of method can do at least."""

METHODS_ALLOWED = {
    "strategy": "a strategy such as unspool.Beam(width=4), or None",
    "source": "a source such as unspool.DoLa(), or None",
    "select": "a selection such as unspool.MBR(n=16), or None",
}

DEFAULT_BREAKERS = ("\n", ":", '"', "*")

_NEVER_NONE = ("n", "logprobs", "priority")


def check_names(settings: dict[str, Any]) -> None:
    """Raise ``ParameterError`` for a name that is no setting, with the nearest that is."""
    for name in settings:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_NAMES)}"
            raise ParameterError(f"unknown parameter {name!r}{hint}")


_LISTED: dict[str, Callable[[str, Any], Any]] = {
    "stop": conversion.strings,
    "stop_token_ids": conversion.token_ids,
    "penalty_scope": conversion.scope,
    "logit_bias": conversion.biases,
    "bad_words": conversion.words,
    "dry_sequence_breakers": conversion.breakers,
    "allowed_token_ids": conversion.some_ids,
    "logits_processors": conversion.processors,
    "order": conversion.order,
}
"""Settings that hold several things, and what turns them into tuples."""
