"""Settings of llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from unspool import conversion
from unspool.errors import ParameterError, shown
from unspool.sampling.rules import Scope
from unspool.translation.reading import Reading, present, reading_of, short

INERT = (
    *("stream", "stream_options", "cache_prompt", "n_cache_reuse", "id_slot", "return_tokens"),
    *("return_progress", "timings_per_token", "verbose", "response_fields", "post_sampling_probs"),
    *("backend_sampling", "sse_ping_interval", "no_perf", "n_prev", "n_keep", "keep", "n_discard"),
)
"""Settings on which no token depends."""
OFF: dict[str, Collection[Any]] = {
    "grammar": ("",),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "preserved_tokens": ([],),
    "json_schema": ({},),
    "response_format": ({"type": "text"},),
    "lora": ([],),
    "n_indent": (0,),
    "min_keep": (0, 1),
    "t_max_predict_ms": (-1, 0),
    "reasoning_budget_tokens": (-1,),
    "echo": (False,),
}
"""Settings without an equal, and the values at which each does nothing; ``None`` always does."""
SAMPLERS: dict[str, tuple[str, ...]] = {
    "penalties": ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    "dry": ("dry",),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc",),
    "temperature": ("temperature",),
    "adaptive_p": ("adaptive_p",),
}
"""The rules that a sampler of llama.cpp is made of, by its name."""
DEFAULT_SAMPLERS = tuple(name for name in SAMPLERS if name != "adaptive_p")
SAMPLER_LETTERS = dict(zip("edskypmxta", SAMPLERS, strict=True))
SAMPLER_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p"}
"""Other names of samplers, beside those without or with other dashes."""
SHORT_NAMES = {"-n": "n_predict", "-s": "seed", "-l": "logit_bias", "-j": "json_schema"}
"""Of its command line's names of one letter those of settings; a request's ``n`` is something else."""
RANDOM_SEEDS = (-1, 2**32 - 1)


def from_llama_cpp(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings of llama.cpp: those of a request to its server, or the options of its command line.

    Its own defaults are meant where a setting is missing: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05,
    and penalties that see the last 64 tokens. As there, mirostat leaves out all other rules but the bias and
    the temperature, ``samplers`` those that it does not name, and adaptive-p is heeded only if it is named.
    Where ``n_predict`` is -1 the limit is the one by default here.
    """
    reading = reading_of("llama.cpp", settings)
    reading.without_dashes(SHORT_NAMES)
    reading.skip(INERT)
    reading.expect_off(OFF)
    samplers = _samplers(reading)
    order, rules = _rules(reading, samplers)
    predict = reading.whole("n_predict", "predict", "max_tokens", "max_completion_tokens", default=-1)
    seed = reading.whole("seed", default=None)
    translated = {
        "order": order,
        **rules,
        "logit_bias": reading.converted(biases, "logit_bias") or None,
        "suppress_eos": reading.flag("ignore_eos"),
        "max_tokens": None if predict == -1 else predict,
        "stop": reading.converted(stop_strings, "stop") or None,
        "seed": None if seed in RANDOM_SEEDS else seed,
        "n": reading.whole("n_cmpl", "n", default=1),
        "logprobs": reading.whole("n_probs", "logprobs", default=0),
    }
    reading.finish()
    return present(translated)


def sampler_names(name: str, value: Any) -> str | tuple[str, ...] | None:
    """A string, or a list of strings: in an order, so no set."""
    try:
        return conversion.order(name, value)
    except ParameterError:
        raise conversion.refuse(name, value, "a list of names, or names or letters in a string") from None


def _samplers(reading: Reading) -> tuple[str, ...]:
    """The names of the samplers in their order, from a list of names, or a string of names or letters."""
    given = reading.converted(sampler_names, "samplers", "sampler_seq", "sampling_seq")
    if given is None:
        return DEFAULT_SAMPLERS
    if isinstance(given, str):
        known = [*SAMPLERS, *SAMPLER_ALIASES, "infill"]
        given = tuple(given.split(";") if ";" in given or given.replace("-", "_") in known else given)
    names = tuple(_sampler(name) for name in given)
    unknown = sorted({name for name in names if name not in SAMPLERS})
    if unknown or len(set(names)) < len(names):
        wrong = ", ".join(map(short, unknown)) or "one of them twice"
        reading.refused.append(f"samplers ({wrong})")
        return DEFAULT_SAMPLERS
    return names


def _sampler(name: str) -> str:
    """A sampler's name, by any of its spellings."""
    plain = name.lower().replace("-", "_")
    spellings = {sampler.replace("_", ""): sampler for sampler in SAMPLERS}
    return (
        SAMPLER_LETTERS.get(plain)
        or SAMPLER_ALIASES.get(plain)
        or spellings.get(plain.replace("_", ""), plain)
    )


def _rules(reading: Reading, samplers: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """The order, and the settings of each sampler's rules: as given where it runs, else off."""
    on = {name: read(reading) for name, read in SAMPLER_READERS.items()}
    mirostat = _mirostat(reading)
    scopes = {
        "penalties": _last(reading, "repeat_last_n", "penalty_last_n"),
        "dry": _last(reading, "dry_penalty_last_n"),
    }
    if mirostat["mirostat"]:
        samplers = ("temperature",)
        on["temperature"] = {"temperature": on["temperature"]["temperature"]}
    running = [name for name in samplers if scopes.get(name, "all") != 0]
    settings: dict[str, Any] = {**mirostat}
    for name in SAMPLERS:
        settings |= on[name] if name in running else SAMPLERS_OFF[name]
    settings["penalty_scope"] = {
        rule: scope for name, scope in scopes.items() if scope != 0 for rule in SAMPLERS[name]
    }
    if mirostat["mirostat"] or samplers == DEFAULT_SAMPLERS:
        return "llama.cpp", settings
    last = ("adaptive_p",) if "adaptive_p" in samplers else ()
    rules = [rule for name in samplers if name not in last for rule in SAMPLERS[name]]
    return ("logit_bias", "minimum_tokens", *rules, *last), settings


def _penalties(reading: Reading) -> dict[str, Any]:
    return {
        "repetition_penalty": reading.number("repeat_penalty", "penalty_repeat", default=1.0),
        "frequency_penalty": reading.number("frequency_penalty", "penalty_freq", default=0.0),
        "presence_penalty": reading.number("presence_penalty", "penalty_present", default=0.0),
    }


def _dry(reading: Reading) -> dict[str, Any]:
    multiplier, base = reading.number("dry_multiplier", default=0.0), reading.number("dry_base", default=1.75)
    length = reading.whole("dry_allowed_length", default=None)
    breakers = reading.converted(conversion.strings, "dry_sequence_breakers")
    if multiplier == 0:
        return SAMPLERS_OFF["dry"]
    return {
        "dry_multiplier": multiplier,
        "dry_base": base if base >= 1 else 1.75,
        "dry_allowed_length": length,
        "dry_sequence_breakers": breakers,
    }


def _top_n_sigma(reading: Reading) -> dict[str, Any]:
    n = reading.number("top_n_sigma", "top_nsigma", default=-1.0)
    return {"top_n_sigma": n if n > 0 else None}


def _xtc(reading: Reading) -> dict[str, Any]:
    probability = reading.number("xtc_probability", default=0.0)
    threshold = reading.number("xtc_threshold", default=0.1)
    runs = probability > 0 and threshold <= 0.5
    return {"xtc_probability": probability, "xtc_threshold": threshold} if runs else SAMPLERS_OFF["xtc"]


def _temperature(reading: Reading) -> dict[str, Any]:
    temperature = max(0.0, reading.number("temperature", "temp", default=0.8))
    spread = reading.number("dynatemp_range", default=0.0)
    exponent = reading.number("dynatemp_exponent", "dynatemp_exp", default=1.0)
    if spread <= 0:
        return {"temperature": temperature}
    return {"temperature": temperature, "dynatemp_range": spread, "dynatemp_exponent": exponent}


def _adaptive_p(reading: Reading) -> dict[str, Any]:
    target = reading.number("adaptive_target", default=-1.0)
    decay = reading.number("adaptive_decay", default=0.9)
    return {} if target < 0 else {"adaptive_target": target, "adaptive_decay": decay}


SAMPLER_READERS: dict[str, Callable[[Reading], dict[str, Any]]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": _top_n_sigma,
    "top_k": lambda r: {"top_k": max(0, r.whole("top_k", default=40))},
    "typ_p": lambda r: {"typical_p": min(1.0, r.number("typical_p", "typ_p", "typical", default=1.0))},
    "top_p": lambda r: {"top_p": min(1.0, r.number("top_p", default=0.95))},
    "min_p": lambda r: {"min_p": max(0.0, r.number("min_p", default=0.05))},
    "xtc": _xtc,
    "temperature": _temperature,
    "adaptive_p": _adaptive_p,
}
"""How the settings of each sampler are read."""

SAMPLERS_OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
    "adaptive_p": {},
}
"""The settings with which nothing of a sampler is left."""


def _mirostat(reading: Reading) -> dict[str, Any]:
    version = reading.whole("mirostat", default=0)
    tau = reading.number("mirostat_tau", "mirostat_ent", default=5.0)
    eta = reading.number("mirostat_eta", "mirostat_lr", default=0.1)
    return {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": eta} if version else {"mirostat": 0}


def _last(reading: Reading, *names: str) -> Scope:
    """How many of the last tokens count; 0: none, and the rules are off."""
    count = reading.whole(*names, default=64)
    return "all" if count == -1 else count


def stop_strings(name: str, value: Any) -> tuple[str, ...]:
    """Stop strings, of which empty ones are passed over."""
    listed = [value] if isinstance(value, str) else conversion.listed(value)
    if listed is None:
        raise conversion.refuse(name, value, "a string or a list of strings")
    return conversion.strings(name, [text for text in listed if not isinstance(text, str) or text])


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """The biases of token ids, of which ``False`` bans and those of one token add up; words are refused."""
    by_key = isinstance(value, Mapping)
    amounts: dict[int, float] = {}
    for key, bias in conversion.couples(name, value, "a mapping of token ids to numbers or False, or pairs"):
        token = conversion.index(conversion.token_key(key) if by_key else key)  # in a pair "5" is a word
        if token is None or token < 0:
            raise ParameterError(f"logit_bias of {shown(key)}, not a token id")
        amount = -math.inf if bias is False else conversion.number(name, bias)
        amounts[token] = amounts.get(token, 0.0) + amount
    return conversion.biases(name, amounts)
