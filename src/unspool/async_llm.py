"""The front door for an event loop: many tasks share one model."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from unspool.cache.size import CacheType
from unspool.engine.aio import EngineThread
from unspool.engine.stats import EngineStats
from unspool.errors import ParameterError, shown
from unspool.llm import LLM, Message, is_one_prompt, one_params, with_dropped
from unspool.params import SamplingParams, Settings
from unspool.results import Chunk

MAX_CHUNK_SECONDS = 60.0

if TYPE_CHECKING:
    from unspool.model.tokenizer import Tokenizer


class AsyncLLM:
    """A model whose requests are awaited: one thread computes for all of them, however many tasks ask.

        async with AsyncLLM("smollm2") as llm:
            async for chunk in llm.generate("Once upon a time", max_tokens=40):
                print(chunk, end="", flush=True)

    model: as for ``LLM``, or an ``LLM``, whose other callers' requests are then computed along with these.
    chunk_seconds: how many seconds of a stream make one chunk at least, after the first; 0 to 60. Waking the
        event loop costs some of a fast step: where tokens come faster than that, a chunk holds several. 0 is
        a chunk for every step.
    The other arguments are those of ``LLM``. Tokens are the same as those of an ``LLM``.

    Close it, or use it as an asynchronous context manager: the thread ends, and requests under way with it.
    """

    def __init__(
        self,
        model: str | Path | LLM = "smollm2",
        *,
        threads: int | None = None,
        cache_tokens: int | None = None,
        cache_memory: int | None = None,
        cache_type: CacheType | None = None,
        step_tokens: int | None = None,
        prefix_cache: bool = True,
        chunk_seconds: float = 0.005,
    ) -> None:
        check_chunk_seconds(chunk_seconds)
        if isinstance(model, LLM):
            given = (threads, cache_tokens, cache_memory, cache_type, step_tokens)
            if given != (None,) * 5 or not prefix_cache:
                raise ParameterError(
                    "an LLM comes with its threads, cache and steps: give them to it instead"
                )
            self.llm = model
        else:
            self.llm = LLM(
                model,
                threads=threads,
                cache_tokens=cache_tokens,
                cache_memory=cache_memory,
                cache_type="float16" if cache_type is None else cache_type,
                step_tokens=step_tokens,
                prefix_cache=prefix_cache,
            )
        self._thread = EngineThread(self.llm.engine, float(chunk_seconds))
        weakref.finalize(self, self._thread.stop).atexit = False  # where nobody closed it

    def __repr__(self) -> str:
        return f"Async{self.llm!r}"

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm.tokenizer

    def stats(self) -> EngineStats:
        """How many requests run and wait, how full the cache is, how fast it goes: after this step."""
        return self.llm.stats()

    def close(self) -> None:
        """End the requests under way with an error, and the thread; waits for the step that it is in."""
        self._thread.close()

    def generate(
        self,
        prompt: str | Sequence[int] | npt.NDArray[np.integer[Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[Settings],
    ) -> AsyncGenerator[Chunk, None]:
        """Continue a prompt, piece by piece: as ``LLM.stream``. The last chunk has the whole ``generation``.

        Leaving the loop early with ``aclosing``, and cancelling the task, end the request and free its
        cache before the next step.
        """
        if not is_one_prompt(prompt):
            raise ParameterError("generate takes one prompt here; for many, run as many tasks")
        request = self.llm.prepare(prompt, SamplingParams.of(one_params(params), settings))
        return self._thread.events(request, self)

    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        continue_final_message: bool = False,
        **settings: Unpack[Settings],
    ) -> AsyncGenerator[Chunk, None]:
        """Reply to a chat, piece by piece: as ``LLM.stream_chat``."""
        params = SamplingParams.of(params, settings)
        request, dropped = self.llm.prepare_chat(messages, params, continue_final_message)
        return chat_events(self._thread.events(request, self), dropped)


def check_chunk_seconds(value: object) -> None:
    """Raise ``ParameterError`` for what is no number of seconds from 0 to 60."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_CHUNK_SECONDS:
        return
    raise ParameterError(
        f"chunk_seconds must be a number from 0 to {MAX_CHUNK_SECONDS:g}, not {shown(value)}"
    )


async def chat_events(events: AsyncGenerator[Chunk, None], dropped: int) -> AsyncGenerator[Chunk, None]:
    """A chat's chunks, the last of which says how many messages were dropped."""
    async with aclosing(events):
        async for chunk in events:
            yield with_dropped(chunk, dropped)
