"""Settings of vLLM."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unspool import conversion
from unspool.translation.reading import Reading, present, reading_of, scopes_of

INERT = (
    *("output_kind", "stream_interval", "flat_logprobs", "skip_clone", "skip_reading_prefix_cache"),
    "routed_experts_prompt_start",
)
"""Settings on which no token depends."""
OFF: dict[str, Collection[Any]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "structured_outputs": (),
    "guided_decoding": (),
    "logits_processors": ([], ()),
    "extra_args": ({},),
    "thinking_token_budget": (-1,),
    "repetition_detection": (),
    "truncate_prompt_tokens": (),
    "logprob_token_ids": ([],),
    "prompt_logprob_token_ids": ([],),
    "prompt_logprob_start": (),
    "trace_decode_token_ids": ([],),
    "detokenize": (True,),
    "spaces_between_special_tokens": (True,),
    "watermarking": (False,),
}
"""Settings without an equal, and the values at which each does nothing; ``None`` always does."""


def from_vllm(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings of vLLM's ``SamplingParams``.

    16 tokens are generated where ``max_tokens`` is missing, and as many as there are by default here where
    it is ``None``. A temperature between 0 and 0.01 is 0.01 there. A bad word is banned with a space before
    it even where that makes it longer in tokens, which vLLM lets pass.
    """
    reading = reading_of("vLLM", settings)
    unlimited = "max_tokens" in reading.left and reading.left["max_tokens"] is None
    reading.skip(INERT)
    reading.expect_off(OFF)
    temperature = reading.number("temperature", default=1.0)
    seed = reading.whole("seed", default=None)
    translated = {
        "order": "vllm",
        "penalty_scope": scopes_of("vllm"),
        "repetition_penalty": reading.number("repetition_penalty", default=1.0),
        "frequency_penalty": reading.number("frequency_penalty", default=0.0),
        "presence_penalty": reading.number("presence_penalty", default=0.0),
        "temperature": max(temperature, 0.01) if temperature > 0 else temperature,
        "min_p": reading.number("min_p", default=0.0),
        "top_k": max(0, reading.whole("top_k", default=0)),
        "top_p": reading.number("top_p", default=1.0),
        "logit_bias": reading.converted(conversion.biases, "logit_bias") or None,
        "allowed_token_ids": reading.converted(conversion.token_ids, "allowed_token_ids"),
        "bad_words": reading.converted(conversion.words, "bad_words") or None,
        "min_tokens": reading.whole("min_tokens", default=0),
        "max_tokens": reading.whole("max_tokens", default=None if unlimited else 16),
        "stop": reading.converted(conversion.strings, "stop") or None,
        "stop_token_ids": reading.converted(conversion.token_ids, "stop_token_ids") or None,
        "include_stop": reading.flag("include_stop_str_in_output"),
        "skip_special_tokens": reading.flag("skip_special_tokens"),
        "ignore_eos": reading.flag("ignore_eos"),
        "seed": None if seed == -1 else seed,
        "n": reading.whole("n", default=1),
        "logprobs": _listed_logprobs(reading, "logprobs"),
        "prompt_logprobs": _listed_logprobs(reading, "prompt_logprobs"),
    }
    reading.finish()
    return present(translated)


def _listed_logprobs(reading: Reading, name: str) -> int | None:
    """How many tokens to list; ``True`` is one, and all of the vocabulary (-1) is refused."""
    if isinstance(reading.left.get(name), bool):
        return int(bool(reading.flag(name)))
    count = reading.whole(name, default=None)
    if count == -1:
        reading.refused.append(f"{name}=-1 (of the whole vocabulary)")
        return None
    return count
