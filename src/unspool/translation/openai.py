"""Settings of requests to OpenAI."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unspool import conversion
from unspool.errors import shown
from unspool.translation.reading import Reading, present, reading_of

INERT = (
    *("user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key"),
    *("stream", "stream_options"),
)
"""Settings on which no token depends."""
OFF: dict[str, Collection[Any]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
}
"""Settings without an equal, and the values at which each does nothing; ``None`` always does."""


def from_openai(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings of a request to OpenAI's completions or chat completions, in the default order.

    Rules that OpenAI does not have are off. Where no limit is given there is the one by default here.
    """
    reading = reading_of("OpenAI", settings)
    reading.skip(INERT)
    reading.expect_off(OFF)
    translated = {
        "temperature": reading.number("temperature", default=1.0),
        "top_p": reading.number("top_p", default=1.0),
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": reading.number("frequency_penalty", default=0.0),
        "presence_penalty": reading.number("presence_penalty", default=0.0),
        "penalty_scope": "output",
        "logit_bias": reading.converted(conversion.biases, "logit_bias") or None,
        "max_tokens": reading.whole("max_completion_tokens", "max_tokens", default=None),
        "stop": reading.converted(conversion.strings, "stop") or None,
        "seed": reading.whole("seed", default=None),
        "n": reading.whole("n", default=1),
        "logprobs": _logprobs(reading),
    }
    reading.finish()
    return present(translated)


def _logprobs(reading: Reading) -> int:
    """How many tokens to list: a count in completions, a flag and a count of its own in chat completions."""
    is_chat = isinstance(reading.left.get("logprobs"), bool)
    listed = reading.flag("logprobs") if is_chat else reading.whole("logprobs", default=0)
    top = reading.whole("top_logprobs", default=0)
    if top and listed is not True:
        reading.refused.append(f"top_logprobs={shown(top)} (without logprobs=True)")
    return top if is_chat else int(listed or 0)
