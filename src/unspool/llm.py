"""The front door: a model by name, and what can be asked of it."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack, overload

import numpy as np
import numpy.typing as npt

from unspool.cache import blocks_for_memory, blocks_for_tokens
from unspool.cache.size import CacheType, check_cache_type
from unspool.combine import Guidance, Place
from unspool.combine.source import Source
from unspool.engine.branch import text_of
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.engine.request import Request
from unspool.engine.stats import EngineStats
from unspool.errors import ModelFileError, ParameterError, SettingsWarning, UnspoolError, shown
from unspool.params import SamplingParams, Settings
from unspool.progress import progress_of
from unspool.results import Chunk, Distribution, Generation, Score
from unspool.task_presets import warnings_of
from unspool.words import Words

if TYPE_CHECKING:
    from unspool.backend.base import Backend
    from unspool.engine.branch import Detokenizer
    from unspool.model.loader import LoadedModel
    from unspool.model.spec import ModelSpec
    from unspool.model.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""One message of a chat: ``{"role": ..., "content": ...}``, and what else its template reads."""

DEFAULT_CACHE_MEMORY = 1 << 30
"""Bytes that the default cache may take."""
MAX_CACHE_BLOCKS = (2**31 - 1) // 16
"""Slots are numbered in 32 bits."""
CHAT_MAX_TOKENS = 1024
"""The longest reply of a chat, where ``max_tokens`` is not given."""


class LLM:
    """A model, ready to generate.

    model: an alias (``unspool models`` lists them), a path to a ``.gguf`` file, or a Hugging Face id.
    threads: of the processor; ``None`` takes as many as there are physical cores to use.
    cache_tokens, cache_memory: the size of the key-value cache in tokens or in bytes (one of them).
        ``None``: one sequence of the model's whole context, or what fits in 1 GiB if that is less.
    cache_type: what keys and values are kept in: ``float16``, ``bfloat16``, ``float32`` or ``int8``, which
        takes half of float16's memory, and less time where a context is long (see ``docs/accuracy.md``).
    step_tokens: the most tokens that one step computes; default 512. Text does not depend on it.
    prefix_cache: whether requests share what was computed for prompts that begin alike.

    Prompts are text or token ids. Special tokens that are spelled inside a text are text; ``chat`` writes
    the model's own, and ``tokenizer.encode(text, parse_special=True)`` makes ids of them.

    Requests of a list, and of several threads that call one LLM, are computed together, step by step, and
    each gets what it would get alone. Whoever waits for a result takes the steps: there is no thread in the
    background, and nothing is computed while nobody waits. An open stream goes on while others wait for
    theirs. An LLM is of the process that made it: after a fork, make another.

    Raises ``ModelNotFoundError`` or ``ModelFileError`` for a model that cannot be had or run, and
    ``ParameterError`` for the other arguments.
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        threads: int | None = None,
        cache_tokens: int | None = None,
        cache_memory: int | None = None,
        cache_type: CacheType = "float16",
        step_tokens: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        from unspool.backend.cpu import CpuBackend
        from unspool.model.loader import load

        check_cache_type(cache_type)
        loaded = load(model)
        backend = CpuBackend(loaded.spec, loaded.tensors, threads=threads, cache_type=cache_type)
        loaded.release_pages()
        self._loaded: LoadedModel | None = loaded
        self._threads, self._cache_type = threads, cache_type
        self._set_up(loaded, backend, cache_tokens, cache_memory, step_tokens, prefix_cache)

    @classmethod
    def with_backend(
        cls,
        loaded: LoadedModel,
        backend: Backend,
        *,
        cache_tokens: int | None = None,
        cache_memory: int | None = None,
        step_tokens: int | None = None,
        prefix_cache: bool = True,
    ) -> LLM:
        """An LLM whose steps another backend computes, which must not have been allocated yet."""
        made = cls.__new__(cls)
        made._loaded = None
        made._set_up(loaded, backend, cache_tokens, cache_memory, step_tokens, prefix_cache)
        return made

    def _set_up(
        self,
        loaded: LoadedModel,
        backend: Backend,
        cache_tokens: int | None,
        cache_memory: int | None,
        step_tokens: int | None,
        prefix_cache: bool,
    ) -> None:
        from unspool.model.detokenizer import IncrementalDetokenizer

        tokenizer = loaded.tokenizer

        texts: dict[bool, dict[int, str]] = {False: {}, True: {}}

        def new_detokenizer(skip_special: bool) -> Detokenizer:
            return IncrementalDetokenizer(tokenizer, skip_special, texts[skip_special])

        self.spec: ModelSpec = loaded.spec
        self.tokenizer: Tokenizer = tokenizer
        self._words = Words(tokenizer)
        self.path: Path = loaded.path
        self._chat_template = loaded.chat_template
        self._open_engine: Engine | None = Engine(
            backend,
            tokenizer,
            new_detokenizer,
            num_blocks=cache_blocks(loaded.spec, cache_tokens, cache_memory, backend.cache_type),
            settings=model_settings(loaded.metadata),
            step_tokens=None if step_tokens is None else check_count("step_tokens", step_tokens),
            sharing=prefix_cache,
        )

    def __repr__(self) -> str:
        return f"LLM({self.spec.name!r}, context_length={self.spec.context_length})"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model and its cache; the LLM cannot be used again. Open streams may be read on."""
        self._open_engine = None

    @property
    def engine(self) -> Engine:
        """What computes the requests. Raises ``UnspoolError`` where the LLM is closed."""
        if self._open_engine is None:
            raise UnspoolError("the LLM is closed")
        return self._open_engine

    def stats(self) -> EngineStats:
        """How many requests run and wait, how full the cache is, how fast it goes."""
        return self.engine.stats()

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is one prompt, never a list of them
        self,
        prompt: str | Sequence[int] | npt.NDArray[np.integer[Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[Settings],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **settings: Unpack[Settings],
    ) -> list[Generation]: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]] | Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        return_exceptions: Literal[True],
        **settings: Unpack[Settings],
    ) -> list[Generation | Exception]: ...

    def generate(
        self,
        prompt: Any,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        return_exceptions: bool = False,
        **settings: Unpack[Settings],
    ) -> Generation | list[Generation] | list[Generation | Exception]:
        """Continue a prompt, or each of a list of prompts, which are computed together.

        prompt: text, or a flat list of token ids: one prompt, which gives one ``Generation``. A list of
            texts, or of lists of token ids: a list of ``Generation`` (an empty list gives an empty one). What
            the prompts of a list have in common is computed once.
        params: one for all, or a list with one for each prompt; ``settings`` take precedence over it.
        progress: whether to draw a progress bar for a list, on standard error; ``None``: on a terminal.
        return_exceptions: whether an error that refuses or ends one request of a list, whoever's it is,
            stands in its place among the results, and the others go on; else it ends them all.
        settings: the fields of ``SamplingParams`` by name.

        Raises ``ParameterError`` or ``ContextLengthError`` for what cannot be honoured, before anything is
        computed; ``RowError`` for a row of logits that has no law to draw from.
        """
        if is_one_prompt(prompt):
            request = self.prepare(prompt, SamplingParams.of(one_params(params), settings))
            return self._run([request], return_exceptions=False, progress=False)[0]
        prompts = list(prompt)
        each = params_for_each(params, len(prompts))
        requests: dict[int, Request] = {}
        results: dict[int, Generation | Exception] = {}
        for at, (text, own) in enumerate(zip(prompts, each, strict=True)):
            try:
                requests[at] = self.prepare(text, SamplingParams.of(own, settings))
            except UnspoolError as error:
                error.args = (f"prompt {at} of the list: {error}",)
                if not return_exceptions:
                    raise
                results[at] = error
        made = self._run(list(requests.values()), return_exceptions=return_exceptions, progress=progress)
        results.update(zip(requests, made, strict=True))
        return [results[at] for at in range(len(prompts))]

    def stream(
        self,
        prompt: str | Sequence[int] | npt.NDArray[np.integer[Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[Settings],
    ) -> Generator[Chunk, None, None]:
        """Continue one prompt, piece by piece as it is generated: see ``Chunk``.

        What no longer may become a stop string is given at once, whole characters only. Closing the
        iterator early ends the request and frees its cache. Raises as ``generate`` does, and for a
        refused parameter at once.
        """
        if not is_one_prompt(prompt):
            raise ParameterError(
                "stream takes one prompt, text or a flat list of token ids, not a list of prompts"
            )
        request = self.prepare(prompt, SamplingParams.of(one_params(params), settings))
        return self._stream(self.engine, request)

    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        continue_final_message: bool = False,
        **settings: Unpack[Settings],
    ) -> Generation:
        """Reply to a chat, written as the model's own chat template has it.

        messages: a list of ``{"role": "system" | "user" | "assistant", "content": text}``, oldest first; a
            text is one user's message.
        continue_final_message: go on with the last message's text instead of starting a reply to it.

        A chat that leaves no room for the reply (``max_tokens``, or if that is not given up to 1024
        tokens, at most a quarter of the context) loses its oldest turns, never a system message;
        ``Generation.dropped_messages`` says how many messages. Raises as ``generate`` does, and
        ``ParameterError`` for messages that are none or a model without a template.
        """
        params = SamplingParams.of(params, settings)
        request, dropped = self.prepare_chat(messages, params, continue_final_message)
        [generation] = self._run([request], return_exceptions=False, progress=False)
        return replace(generation, dropped_messages=dropped)

    def stream_chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        continue_final_message: bool = False,
        **settings: Unpack[Settings],
    ) -> Generator[Chunk, None, None]:
        """Reply to a chat, piece by piece: as ``chat``, as ``stream``."""
        params = SamplingParams.of(params, settings)
        request, dropped = self.prepare_chat(messages, params, continue_final_message)
        return self._stream(self.engine, request, dropped)

    def next_token(
        self,
        prompt: str | Sequence[int] | npt.NDArray[np.integer[Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[Settings],
    ) -> Distribution:
        """The law that the first token after a prompt is drawn from, and what each rule did to make it.

        What only says how the text goes on, such as ``max_tokens``, ``stop`` and ``n``, has no part in it.

        Raises as ``generate`` does, and ``ParameterError`` for rows that are combined (``source``).
        """
        asked = SamplingParams.of(one_params(params), settings)
        if asked.prompt_logprobs is not None:
            raise ParameterError("prompt_logprobs come with generate: the law of one token has none")
        request = self.prepare(prompt, asked)
        if request.source is not None:
            raise ParameterError(
                "the law of one token is the model's alone: guidance_scale and source come with generate, "
                "whose top_processed_logprobs are of the combined rows"
            )
        reading, look = self.engine.prepare_look(request)
        self._read(reading)
        assert look.distribution is not None
        return look.distribution

    def logits(
        self, token_ids: str | Sequence[int] | npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.float32]:
        """[T, vocab_size] float32: row i is what follows token i, as the model gives it, before any rule.

        token_ids: T tokens, or a text that is encoded as a prompt is.
        """
        ids = self._encode(token_ids)

        def read(first: int, rows: npt.NDArray[np.float32]) -> None:
            out[first : first + len(rows)] = rows

        request = self.engine.prepare_reading(ids, read)
        out = np.empty((len(ids), self.spec.vocab_size), dtype=np.float32)  # which is known to be sane by now
        self._read(request)
        return out

    def score(self, text: str | Sequence[int] | npt.NDArray[np.integer[Any]]) -> Score:
        """How probable the model finds a text (or token ids): the log-probability of each token after those
        before it, in float32 logits and float64 sums.
        """
        ids = self._encode(text)
        logprobs: list[float | None] = [None]

        def read(first: int, rows: npt.NDArray[np.float32]) -> None:
            following = ids[first + 1 : first + 1 + len(rows)]
            logprobs.extend(log_probabilities(rows[: len(following)], following))

        self._read(self.engine.prepare_reading(ids, read))
        texts = [text_of(token, self.tokenizer) for token in ids]
        return Score(ids, texts, logprobs)

    def _encode(self, prompt: Any) -> list[int]:
        """One prompt's token ids; whether they are of the vocabulary is checked by the engine."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not is_one_prompt(prompt) and len(prompt) > 0:  # the engine says what is wrong with an empty one
            refuse_prompt(prompt)
        return [int(token) for token in prompt]

    def _read(self, request: Request) -> None:
        """Let a request that reads rows read them all."""
        engine = self.engine
        flight = engine.submit(request)
        try:
            engine.drive(lambda: flight.done)
        finally:
            engine.cancel(flight)
        if flight.error is not None:
            raise flight.error

    def prepare(self, prompt: Any, params: SamplingParams) -> Request:
        """The request of one prompt, checked. Raises as ``generate`` does."""
        return self._prepare(self._encode(prompt), params, self._encode)

    def _source(
        self, ids: list[int], params: SamplingParams, negative: Callable[[str], list[int]]
    ) -> Source | None:
        """What a request's rows are made of. Raises ``ParameterError`` where that does not fit the model."""
        combination = params.source
        if params.guidance_scale is not None and params.guidance_scale != 1:
            prompt = params.negative_prompt
            combination = Guidance(
                params.guidance_scale, negative(prompt) if isinstance(prompt, str) else prompt or ()
            )
        if combination is None or not ids:
            return None
        return combination.tracks(Place(ids, self.spec, self._attach))

    def _attach(self, other: LLM) -> str:
        """Give another model a place beside this one; the name of its backend there.

        Its tensors are read again, for a cache of this engine's own. Raises ``ParameterError``.
        """
        if other._loaded is None or self._loaded is None:
            raise ParameterError("an amateur is read from its file: one made with with_backend cannot be")
        mine, theirs = self._loaded.tokenizer, other._loaded.tokenizer
        if mine.vocab_size != theirs.vocab_size or any(
            mine.id_to_token(token) != theirs.id_to_token(token) for token in range(mine.vocab_size)
        ):
            raise ParameterError(
                f"{self.spec.name} and {other.spec.name} have different vocabularies: rows do not combine"
            )
        name = f"{other.path}"
        if name not in self.engine.homes:
            from unspool.backend.cpu import CpuBackend

            backend = CpuBackend(
                other._loaded.spec,
                other._loaded.tensors,
                threads=self._threads,
                cache_type=self._cache_type,
            )
            other._loaded.release_pages()
            self.engine.attach(name, backend, self.engine.main.pool.num_blocks)
        return name

    def _prepare(
        self, ids: list[int], params: SamplingParams, negative: Callable[[str], list[int]]
    ) -> Request:
        """The request of a prompt's token ids; warns where its settings may make it ramble."""
        params = self._words.with_token_ids(params)
        request = self.engine.prepare(ids, params, source=self._source(ids, params, negative))
        for warning in warnings_of(vars(request.params)):
            warnings.warn(warning, SettingsWarning, stacklevel=4)
        return request

    @overload
    def _run(
        self, requests: list[Request], *, return_exceptions: Literal[False], progress: bool | None
    ) -> list[Generation]: ...

    @overload
    def _run(
        self, requests: list[Request], *, return_exceptions: bool, progress: bool | None
    ) -> list[Generation] | list[Generation | Exception]: ...

    def _run(
        self, requests: list[Request], *, return_exceptions: bool, progress: bool | None
    ) -> list[Generation] | list[Generation | Exception]:
        """The results of requests, in their order."""
        engine = self.engine
        flights: list[Flight] = []
        left: list[Flight] = []

        def done() -> bool:
            while left and left[-1].done and (return_exceptions or left[-1].error is None):
                left.pop()
            return not left or (left[-1].done and not return_exceptions)

        try:
            for request in requests:
                flights.append(engine.submit(request))
            left.extend(reversed(flights))
            with progress_of(flights, progress) as each_step:
                engine.drive(done, each_step)
        finally:
            for flight in flights:
                engine.cancel(flight)
        if not return_exceptions:
            return [flight.generation() for flight in flights]
        return [result_of(flight) for flight in flights]

    def _stream(
        self, engine: Engine, request: Request, dropped_messages: int = 0
    ) -> Generator[Chunk, None, None]:
        """A request's chunks; it is submitted when the first is asked for."""
        flight = engine.submit(request, streaming=True)
        done = False
        try:
            while not done:
                engine.drive(lambda: bool(flight.outbox) or flight.done)
                done = flight.done  # looked at first: another thread may be in a step that puts out the last
                while flight.outbox:
                    yield with_dropped(flight.outbox.popleft(), dropped_messages)
            for chunk in flight.conclude():
                yield with_dropped(chunk, dropped_messages)
        finally:
            engine.cancel(flight)
        if flight.error is not None:
            raise flight.error

    def prepare_chat(
        self, messages: str | Sequence[Message], params: SamplingParams, continue_final_message: bool
    ) -> tuple[Request, int]:
        """The request of a chat's reply, and how many messages were dropped for it to fit.

        Raises as ``chat`` does.
        """
        if not isinstance(continue_final_message, bool):
            raise ParameterError(
                f"continue_final_message must be True or False, not {shown(continue_final_message)}"
            )
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        limits = self.engine.limits
        room = min(limits.context_length, limits.cache_tokens)
        wanted = params.max_tokens or min(CHAT_MAX_TOKENS, room // 4)
        ids, dropped = self._encode_chat(messages, continue_final_message), 0
        if len(ids) + wanted > room:
            shorter = [messages, *shortened_chats(messages)]

            def fits(chat: Sequence[Message]) -> bool:
                return len(self._encode_chat(chat, continue_final_message)) + wanted <= room

            kept = shorter[min(bisect_left(shorter, True, key=fits), len(shorter) - 1)]
            ids, dropped = self._encode_chat(kept, continue_final_message), len(messages) - len(kept)
        if params.max_tokens is None and len(ids) < room:
            params = replace(params, max_tokens=min(CHAT_MAX_TOKENS, room - len(ids)))

        def negative(text: str) -> list[int]:
            return self._encode_chat([{"role": "user", "content": text}], False)

        return self._prepare(ids, params, negative), dropped

    def _encode_chat(self, messages: Sequence[Message], continue_final_message: bool) -> list[int]:
        from unspool.model.chat_template import encode_chat

        if self._chat_template is None:
            raise ParameterError(f"{self.spec.name} has no chat template: use generate, or an instruct model")
        return encode_chat(
            self._chat_template,
            self.tokenizer,
            messages,
            continue_final_message=continue_final_message,
        )


def result_of(flight: Flight) -> Generation | Exception:
    """What a flight came to: a result, or an error, which may be a caller's own rule's."""
    error = flight.error
    if isinstance(error, Exception):
        return error
    if error is None:
        try:
            return flight.generation()
        except Exception as raised:  # by its selection
            return raised
    ended = UnspoolError(f"request {flight.number} ended with {type(error).__name__}, from its own code")
    ended.__cause__ = error
    return ended


def with_dropped(chunk: Chunk, dropped_messages: int) -> Chunk:
    """A chat's chunk; the last one's result says how many messages were dropped."""
    if chunk.generation is None or dropped_messages == 0:
        return chunk
    return replace(chunk, generation=replace(chunk.generation, dropped_messages=dropped_messages))


def cache_blocks(
    spec: ModelSpec,
    cache_tokens: int | None,
    cache_memory: int | None,
    cache_type: CacheType = "float16",
) -> int:
    """Blocks of the cache that ``LLM`` was asked for. Raises ``ParameterError``."""
    per_token = spec.cache_bytes_per_token(cache_type)
    if cache_tokens is not None and cache_memory is not None:
        raise ParameterError("give cache_tokens or cache_memory, not both")
    if cache_tokens is not None:
        blocks = blocks_for_tokens(check_count("cache_tokens", cache_tokens))
    elif cache_memory is not None:
        blocks = blocks_for_memory(check_count("cache_memory", cache_memory), per_token)
    else:
        fitting = blocks_for_memory(DEFAULT_CACHE_MEMORY, per_token)
        return max(1, min(blocks_for_tokens(spec.context_length), fitting))
    if blocks < 1:
        raise ParameterError(
            f"cache_memory={cache_memory} bytes hold no block of 16 tokens, which takes {16 * per_token}"
        )
    if blocks > MAX_CACHE_BLOCKS:
        raise ParameterError(f"a cache holds at most {16 * MAX_CACHE_BLOCKS} tokens; ask for fewer")
    return blocks


def check_count(name: str, value: object) -> int:
    """A whole number from 1. Raises ``ParameterError``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ParameterError(f"{name} must be a whole number, at least 1, not {shown(value)}")
    return int(value)


PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")

_MODEL_SETTINGS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.penalty_last_n": "penalty_scope",
}


def model_settings(metadata: Mapping[str, Any]) -> Settings:
    """The sampling settings that a model file states as its own, by the names of ``SamplingParams``.

    Raises ``ModelFileError`` for a value that is out of range.
    """
    stated = {name: metadata[key] for key, name in _MODEL_SETTINGS.items() if key in metadata}
    if stated.get("penalty_scope") == -1:  # the file's way to say: prompt and output, whole
        stated["penalty_scope"] = dict.fromkeys(PENALTIES, "all")
    elif isinstance(stated.get("penalty_scope"), int) and stated["penalty_scope"] > 0:
        # The file speaks of these penalties alone: n-grams and DRY keep scopes of their own.
        stated["penalty_scope"] = dict.fromkeys(PENALTIES, stated["penalty_scope"])
    if stated.get("penalty_scope") == 0:  # the file's way to say: no penalty
        stated.pop("penalty_scope")
        stated.pop("repetition_penalty", None)
    try:
        params = SamplingParams(**stated)
    except ParameterError as error:
        raise ModelFileError(f"the model file's own sampling settings are wrong: {error}") from error
    settings = Settings()
    settings.update({name: getattr(params, name) for name in stated})  # type: ignore[typeddict-item]
    return settings


def is_one_prompt(prompt: object) -> bool:
    """Whether ``prompt`` is a text or a flat list of token ids, and not a list of prompts.

    Raises ``ParameterError`` for what is neither.
    """
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray):
        if prompt.ndim == 0 or prompt.dtype.kind not in "iu":
            refuse_prompt(prompt)
        return prompt.ndim == 1
    if isinstance(prompt, (bytes, bytearray, memoryview)) or not isinstance(prompt, Sequence):
        refuse_prompt(prompt)
    numbers = sum(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in prompt)
    if 0 < numbers < len(prompt):
        refuse_prompt(prompt)
    return numbers > 0


def refuse_prompt(prompt: object) -> NoReturn:
    """Raise ``ParameterError`` for something that is no prompt and no list of prompts."""
    raise ParameterError(
        "a prompt must be a text or a flat list of token ids, and prompts a list of such; "
        f"this is {type(prompt).__name__}"
    )


def one_params(params: object) -> SamplingParams | None:
    """``params`` for one prompt. Raises ``ParameterError`` for a list of them."""
    if params is None or isinstance(params, SamplingParams):
        return params
    raise ParameterError(f"one prompt takes one SamplingParams, not {type(params).__name__}")


def params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams | None]:
    """One ``SamplingParams`` for each of ``count`` prompts. Raises ``ParameterError`` for another number."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence):
        raise ParameterError(
            f"params must be a SamplingParams or a list of them, not {type(params).__name__}"
        )
    if len(params) != count:
        raise ParameterError(f"{count} prompts take one SamplingParams or {count}, not {len(params)}")
    return [one_params(each) for each in params]


def shortened_chats(messages: Sequence[Message]) -> list[list[Message]]:
    """The chat without its oldest turn, without its two oldest, and so on, the last turn alone at the end.

    System messages stay. A turn is a user's message and what follows up to the next one.
    """
    system = [message for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    starts = [i for i, message in enumerate(rest) if message["role"] == "user" and i > 0]
    return [[*system, *rest[start:]] for start in starts]


def log_probabilities(rows: npt.NDArray[np.float32], tokens: Sequence[int]) -> list[float]:
    """Natural log-probability of ``tokens[i]`` under ``rows[i]`` ([t, vocab_size]), summed in float64."""
    if len(rows) == 0:
        return []
    best = rows.max(axis=1, keepdims=True)
    sums = np.exp(rows - best).sum(axis=1, dtype=np.float64)
    chosen = (rows - best)[np.arange(len(rows)), list(tokens)].astype(np.float64)
    listed: list[float] = (chosen - np.log(sums)).tolist()
    return listed
