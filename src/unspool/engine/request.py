"""What one caller asked for, resolved and checked against the model before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from unspool.engine.source import Source
from unspool.engine.stop import StopAutomaton
from unspool.errors import ContextLengthError, ParameterError, shown
from unspool.params import SamplingParams, Settings
from unspool.sampling.chain import Chain
from unspool.sampling.noise import mix
from unspool.speculate.draft import Proposer
from unspool.strategy import Sample, Strategy

Read = Callable[[int, npt.NDArray[np.float32]], None]
"""Takes (first, rows): row i of ``rows`` [t, vocab_size] follows token ``first + i``; not to be kept."""

DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True)
class Limits:
    """What a request is checked against: counts of tokens, and what the model ends with."""

    vocab_size: int
    context_length: int
    cache_tokens: int
    """Token slots of the whole cache."""
    eos_ids: frozenset[int]


@dataclass(frozen=True, eq=False)
class Request:
    """A request that can be run: every setting has a value."""

    prompt: list[int]
    params: SamplingParams
    strategy: Strategy
    chain: Chain
    seed: int
    key: int
    """Noise key of every draw: ``mix(seed, lane)`` with lane 0."""
    max_tokens: int
    end_ids: frozenset[int]
    """Tokens that end a branch."""
    stops: StopAutomaton | None
    source: Source | None = None
    """None: one track, the prompt through the engine's own backend."""
    proposer: Proposer | None = None
    read: Read | None = None
    """Given the row of every token of the prompt, after which the request ends; nothing is drawn."""
    kinds: npt.NDArray[np.int32] = field(init=False)
    values: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", self.chain.kinds)
        object.__setattr__(self, "values", self.chain.values)


def prepare(
    prompt: Sequence[int],
    params: SamplingParams,
    limits: Limits,
    model_settings: Settings,
    *,
    source: Source | None = None,
    proposer: Proposer | None = None,
) -> Request:
    """Resolve ``params`` with the model's own settings and check them against its limits.

    Raises ``ParameterError`` for an empty prompt or an id outside the vocabulary, ``ContextLengthError``
    for a prompt or ``max_tokens`` that do not fit.
    """
    missing = {name: value for name, value in model_settings.items() if getattr(params, name) is None}
    params = replace(params, **missing)  # type: ignore[arg-type]  # the names and types of Settings
    ids = check_prompt(prompt, limits.vocab_size)
    check_ids("stop_token_ids", params.stop_ids, limits.vocab_size)
    seed = int.from_bytes(os.urandom(4), "little") if params.seed is None else params.seed
    return Request(
        prompt=ids,
        params=params,
        strategy=Sample(params.n),
        chain=params.chain(),
        seed=seed,
        key=mix(seed, 0),
        max_tokens=resolve_max_tokens(len(ids), params.max_tokens, limits),
        end_ids=frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else limits.eos_ids),
        stops=StopAutomaton(params.stop_strings) if params.stop_strings else None,
        source=source,
        proposer=proposer,
    )


def prepare_reading(token_ids: Sequence[int], read: Read, limits: Limits) -> Request:
    """A request that computes ``token_ids`` and gives ``read`` the row of each, in order.

    Raises as ``prepare`` does, except that the tokens may fill the context.
    """
    ids = check_prompt(token_ids, limits.vocab_size)
    check_fit(len(ids), 0, limits)
    params = SamplingParams()
    return Request(
        prompt=ids,
        params=params,
        strategy=Sample(1),
        chain=params.chain(),
        seed=0,
        key=0,
        max_tokens=0,
        end_ids=frozenset(),
        stops=None,
        read=read,
    )


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ``ParameterError`` for a token id that the model does not have."""
    for at, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ParameterError(
                f"{name} holds token id {shown(token)} (at {at}); the model's ids are 0 to {vocab_size - 1}"
            )


def check_prompt(prompt: Sequence[int], vocab_size: int) -> list[int]:
    """The prompt as a list of ints. Raises ``ParameterError`` where it is empty or not of the vocabulary."""
    ids = np.asarray(prompt)
    if ids.size == 0:
        raise ParameterError(
            "the prompt is empty, and the model has no beginning-of-text token to start from"
        )
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ParameterError("a prompt must be a string or a flat list of token ids, which are whole numbers")
    listed: list[int] = ids.tolist()
    check_ids("the prompt", listed, vocab_size)
    return listed


def check_fit(prompt_tokens: int, new_tokens: int, limits: Limits) -> None:
    """Raise ``ContextLengthError`` where a prompt and what is to follow do not fit, saying how much does."""
    room = min(limits.context_length, limits.cache_tokens)
    if prompt_tokens + new_tokens <= room:
        return
    if limits.context_length <= limits.cache_tokens:
        place, remedy = f"the model's context of {room} tokens", "shorten it"
    else:
        place, remedy = f"the cache of {room} tokens", "give a larger cache_tokens or cache_memory"
    most = room - min(new_tokens, 1)
    if prompt_tokens > most:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens; {place} has room for {most}: {remedy}"
        )
    raise ContextLengthError(
        f"max_tokens={new_tokens} after a prompt of {prompt_tokens} tokens does not fit in {place}: "
        f"at most {room - prompt_tokens} do"
    )


def resolve_max_tokens(prompt_tokens: int, max_tokens: int | None, limits: Limits) -> int:
    """``max_tokens`` checked against context and cache; of the default, as many as fit."""
    check_fit(prompt_tokens, 1 if max_tokens is None else max_tokens, limits)
    room = min(limits.context_length, limits.cache_tokens) - prompt_tokens
    return min(DEFAULT_MAX_TOKENS, room) if max_tokens is None else max_tokens
