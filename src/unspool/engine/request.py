"""What one caller asked for, resolved and checked against the model before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from unspool.combine.source import Source
from unspool.engine.stop import StopAutomaton
from unspool.errors import ContextLengthError, ParameterError, shown
from unspool.params import SamplingParams, Settings
from unspool.sampling.chain import Chain
from unspool.sampling.noise import mix
from unspool.sampling.settings import compile_chain
from unspool.select import Selection
from unspool.speculate.draft import Proposer
from unspool.strategy import RowWant, Sample, Strategy, Task

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
    read_from: int = 0
    """The first token whose row is read."""
    select: Selection | None = None
    """Chooses among its branches once they have ended; None: all are results as they are."""
    special: bool = field(init=False)
    """Whether its rows need more than one call of the sampler for all of a step."""
    offered: bool = field(init=False)
    """Whether its rows give candidates to choose from rather than a drawn token."""
    revises: bool = field(init=False)
    """Whether its best result is known at the end alone: a stream shows what all branches agree on."""

    def __post_init__(self) -> None:
        learns = self.chain.learns and self.proposer is not None
        special = self.chain.custom is not None or self.params.trace or learns
        object.__setattr__(self, "special", special)
        want = self.strategy.want
        object.__setattr__(self, "offered", want.offers > 0 or want.law)
        object.__setattr__(self, "revises", self.strategy.revises or self.select is not None)


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

    Raises ``ParameterError`` for an empty prompt, an id outside the vocabulary, a word that is not token ids
    yet, or rules that do not go with the model's own settings; ``ContextLengthError`` for a prompt or
    ``max_tokens`` that do not fit.
    """
    method = params.strategy
    params = params.with_defaults(model_settings if method is None or method.uses_model_settings else {})
    ids = check_prompt(prompt, limits.vocab_size)
    for name, given in params.token_ids().items():
        check_ids(name, given, limits.vocab_size)
    if source is not None and params.prompt_logprobs is not None:
        raise ParameterError("prompt_logprobs are of one track, and cannot be had with a source of several")
    end_ids = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else limits.eos_ids)
    barred = end_ids | limits.eos_ids if params.suppress_eos else end_ids
    seed = int.from_bytes(os.urandom(4), "little") if params.seed is None else params.seed
    max_tokens = resolve_max_tokens(len(ids), params.max_tokens, limits)
    chain = compile_chain(params.rule_settings(barred))
    strategy = begin(params, max_tokens, end_ids, limits, chain)
    if proposer is not None and strategy.want != RowWant():
        raise ParameterError(
            f"guesses ahead are verified for sampling alone: a proposer does not go with {shown(method)}"
        )
    return Request(
        prompt=ids,
        params=params,
        strategy=strategy,
        chain=chain,
        seed=seed,
        key=mix(seed, 0),
        max_tokens=max_tokens,
        end_ids=end_ids,
        stops=StopAutomaton(params.stop_strings) if params.stop_strings else None,
        source=source,
        proposer=proposer,
        select=params.select,
    )


def begin(
    params: SamplingParams, max_tokens: int, end_ids: frozenset[int], limits: Limits, chain: Chain
) -> Strategy:
    """The strategy of a request. Raises ``ParameterError`` for what it does not go with."""
    n = params.n if params.select is None else params.select.n
    if params.strategy is None:
        return Sample(n)
    transformers = params.order == "transformers"
    return params.strategy.begin(
        Task(
            n=n,
            max_tokens=max_tokens,
            end_ids=end_ids,
            vocab_size=limits.vocab_size,
            learns=chain.learns,
            traced=params.trace,
            transformers=transformers,
            stops=bool(params.stop_strings),
        )
    )


def prepare_reading(
    token_ids: Sequence[int],
    read: Read,
    limits: Limits,
    first: int = 0,
    params: SamplingParams = SamplingParams(),  # noqa: B008  # immutable
) -> Request:
    """A request that computes ``token_ids`` and gives ``read`` the row of each from ``first`` on, in order.

    params: whose ``priority`` and ``cache_salt`` hold.

    Raises as ``prepare`` does, except that the tokens may fill the context.
    """
    ids = check_prompt(token_ids, limits.vocab_size)
    check_fit(len(ids), 0, limits)
    return Request(
        prompt=ids,
        params=SamplingParams(priority=params.priority, cache_salt=params.cache_salt),
        strategy=Sample(1),
        chain=Chain(),
        seed=0,
        key=0,
        max_tokens=0,
        end_ids=frozenset(),
        stops=None,
        read=read,
        read_from=first,
    )


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ``ParameterError`` for a token id that the model does not have."""
    for at, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ParameterError(
                f"{name} holds token id {shown(token)} (at {at}); the model's ids are 0 to {vocab_size - 1}"
            )


def check_prompt(prompt: Any, vocab_size: int) -> list[int]:
    """The prompt as a list of ints. Raises ``ParameterError`` where it is empty or not of the vocabulary."""
    flat = prompt.ndim == 1 if isinstance(prompt, np.ndarray) else isinstance(prompt, Sequence)
    if flat and len(prompt) == 0:
        raise ParameterError(
            "the prompt is empty, and the model has no beginning-of-text token to start from"
        )
    if not flat or not all(isinstance(t, (int, np.integer)) and not isinstance(t, bool) for t in prompt):
        raise ParameterError("a prompt must be a string or a flat list of token ids, which are whole numbers")
    listed = [int(token) for token in prompt]
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
