"""Settings of Hugging Face Transformers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from unspool import conversion
from unspool.combine import DoLa
from unspool.errors import ParameterError, shown
from unspool.strategy import Beam, BeamSample, Contrastive, DiverseBeam, Method
from unspool.translation.reading import Reading, present, reading_of, scopes_of

Made = TypeVar("Made")

INERT = (
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
    "prefill_chunk_size",
    *("compile_config", "disable_compile", "continuous_batching_config", "use_mtp", "is_assistant"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind"),
    *("target_lookbehind", "speculation_type", "return_dict_in_generate", "renormalize_logits"),
    *("pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version"),
)
"""Settings on which no token depends."""
OFF: dict[str, Collection[Any]] = {
    "constraints": ([],),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (),
    "begin_suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
    "assistant_ensemble_weight": (),
    "max_time": (),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_scores": (False,),
    "output_logits": (False,),
}
"""Settings without an equal, and the values at which each does nothing; ``None`` always does."""


def from_transformers(config: Any) -> dict[str, Any]:
    """Of a Transformers 5 ``GenerationConfig``, or a mapping of its settings.

    Without ``do_sample`` the text is greedy, and what shapes a draw is passed over, as Transformers does;
    with it top-k is 50 where it is missing, and without ``max_new_tokens`` 20 tokens are generated. Stop
    strings stay in the text. Searches that Transformers 5 has no longer mean what they meant: groups of
    beams, forced words, contrastive search, DoLa.
    """
    reading = reading_of("Transformers", config)
    reading.skip([*INERT, *(name for name in reading.left if name.startswith("_"))])
    reading.expect_off(OFF)
    eos = reading.converted(id_list, "eos_token_id") or ()
    # Transformers passes over a bad word that is an end-of-text token alone.
    bad = reading.converted(id_lists, "bad_words_ids") or ()
    words = tuple(word for word in bad if word not in [(end,) for end in eos])
    suppressed = reading.converted(conversion.token_ids, "suppress_tokens") or ()
    stop = reading.converted(conversion.strings, "stop_strings")
    settings = {
        "order": "transformers",
        "penalty_scope": scopes_of("transformers"),
        "repetition_penalty": reading.number("repetition_penalty", default=1.0),
        "no_repeat_ngram_size": reading.whole("no_repeat_ngram_size", default=0),
        "bad_words": (*words, *((token,) for token in suppressed)) or None,
        "logit_bias": reading.converted(sequence_bias, "sequence_bias") or None,
        "min_tokens": _beyond_prompt(reading, "min", default=0),
        **_grown(reading),
        "guidance_scale": reading.number("guidance_scale", default=None),
        "max_tokens": _beyond_prompt(reading, "max", default=20),
        "stop": stop or None,
        "include_stop": True if stop else None,
        "stop_token_ids": eos or None,
        "n": reading.whole("num_return_sequences", default=1),
    }
    reading.finish()
    return present(settings)


def id_list(name: str, value: Any) -> tuple[int, ...]:
    """One token id, or several."""
    return conversion.token_ids(name, value if conversion.index(value) is None else [value])


def id_lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Lists of token ids, none of them empty."""
    words = conversion.words(name, value)
    ids = tuple(word for word in words if not isinstance(word, str))
    if len(ids) < len(words):
        raise conversion.refuse(name, value, "a list of lists of token ids")
    return ids


def sequence_bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """The biases of single tokens; longer sequences are refused."""
    pairs = conversion.couples(name, value, "a mapping of tuples of token ids to numbers, or pairs of them")
    ids = [conversion.token_ids(name, sequence) for sequence, _ in pairs]
    if not all(len(sequence) == 1 for sequence in ids):
        raise ParameterError("sequence_bias of more than one token")
    # Of several biases of a token Transformers heeds the last.
    return conversion.biases(name, {token: bias for (token,), (_, bias) in zip(ids, pairs, strict=True)})


def _grown(reading: Reading) -> dict[str, Any]:
    """How branches grow: by draws, greedily, or in a search; and what rows are made of."""
    drawn = reading.flag("do_sample") or False
    top_k = reading.left.get("top_k")
    layers = reading.take("dola_layers")
    alpha = reading.number("penalty_alpha", default=0.0)
    beams = _beams(reading, drawn)
    settings = _draw(reading, drawn)
    if beams is None and alpha > 0 and not drawn:
        beams = _made(reading, lambda: Contrastive(50 if top_k is None else top_k, alpha))
    if beams is not None and not drawn:
        settings = dict.fromkeys(settings)
    source = None if layers is None else _made(reading, lambda: DoLa(layers))
    return settings | {"strategy": beams, "source": source}


def _beams(reading: Reading, drawn: bool) -> Method | None:
    """The search of several beams, if there are several; what only beams heed is passed over if not."""
    width, groups = (reading.whole(name, default=1) for name in ("num_beams", "num_beam_groups"))
    diversity = reading.number("diversity_penalty", default=0.0)
    length_penalty = reading.number("length_penalty", default=1.0)
    stopping = reading.take("early_stopping", default=False)
    forced = reading.take("force_words_ids")
    if width == 1 and forced is None:
        return None

    def make() -> Method:
        if groups > 1:
            return DiverseBeam(width, groups, diversity, length_penalty, stopping)
        if drawn:
            return BeamSample(width, length_penalty, stopping)
        return Beam(width, length_penalty, stopping, force_words=() if forced is None else forced)

    return _made(reading, make)


def _made(reading: Reading, make: Callable[[], Made]) -> Made | None:
    """What is made of settings; where they are refused, that is said beside what else is."""
    try:
        return make()
    except ParameterError as error:
        reading.refused.append(str(error))
        return None


def _draw(reading: Reading, drawn: bool) -> dict[str, Any]:
    """The settings that only a draw heeds; those of a greedy text where nothing is drawn."""
    epsilon, eta = reading.number("epsilon_cutoff", default=0.0), reading.number("eta_cutoff", default=0.0)
    settings = {
        "temperature": reading.number("temperature", default=1.0),
        "top_h": reading.number("top_h", default=None),
        "top_k": reading.whole("top_k", default=50),
        "top_p": reading.number("top_p", default=1.0),
        "min_p": reading.number("min_p", default=0.0),
        "typical_p": min(1.0, reading.number("typical_p", default=1.0)),
        "epsilon_cutoff": epsilon if 0 < epsilon < 1 else 0.0,
        "eta_cutoff": eta if 0 < eta < 1 else 0.0,
    }
    greedy = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    return settings if drawn else {**greedy, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


def _beyond_prompt(reading: Reading, end: str, default: int) -> int:
    """``max_new_tokens`` or ``min_new_tokens``; a length that counts the prompt is refused."""
    new = reading.whole(f"{end}_new_tokens", default=None)
    whole = reading.whole(f"{end}_length", default=None)
    if new is None and whole:
        reading.refused.append(f"{end}_length={shown(whole)} (it counts the prompt: say {end}_new_tokens)")
    return default if new is None else new
