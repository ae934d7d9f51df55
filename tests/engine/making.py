"""Engines on tiny backends, and what tests ask of them."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from tests.reference.llama import ReferenceBackend
from tests.reference.scripted import ScriptedBackend
from tests.reference.tiny import TinyTokenizer, random_weights, tiny_spec
from unspool.backend.base import Backend
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.model.detokenizer import IncrementalDetokenizer
from unspool.params import SamplingParams, Settings
from unspool.results import Chunk, Generation

SPEC = tiny_spec(context_length=128)
WEIGHTS = random_weights(SPEC)
TOKENIZER = TinyTokenizer()


def make_engine(backend: Backend | None = None, num_blocks: int = 64, **options: Any) -> Engine:
    """An engine on a tiny random model, or on another backend."""
    return Engine(
        ReferenceBackend(SPEC, WEIGHTS) if backend is None else backend,
        TOKENIZER,
        lambda skip: IncrementalDetokenizer(TOKENIZER, skip_special=skip),  # type: ignore[arg-type]
        num_blocks=num_blocks,
        **options,
    )


def scripted(text: str | list[int], prompt_tokens: int = 1) -> Engine:
    """An engine that says a text, a token for each byte, or given tokens, and then ends."""
    said = [TOKENIZER.ids[TOKENIZER.characters[b]] for b in text.encode()] if isinstance(text, str) else text
    return make_engine(ScriptedBackend(SPEC, [0] * prompt_tokens + said + [2] * 120))


def run(engine: Engine, flights: list[Flight]) -> None:
    """Take steps until every flight has ended."""
    engine.drive(lambda: all(flight.done for flight in flights))
    engine.drive(lambda: not engine.step())


def generate(engine: Engine, prompt: list[int], **settings: Unpack[Settings]) -> Generation:
    flight = engine.submit(engine.prepare(prompt, SamplingParams(**settings)))
    try:
        engine.drive(lambda: flight.done)
    finally:
        engine.cancel(flight)
    assert engine.main.pool.num_free == engine.main.pool.num_blocks
    return flight.generation()


def stream(engine: Engine, prompt: list[int], **settings: Unpack[Settings]) -> list[Chunk]:
    flight = engine.submit(engine.prepare(prompt, SamplingParams(**settings)), streaming=True)
    engine.drive(lambda: flight.done)
    return list(flight.outbox)


def read_rows(engine: Engine, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """[T, vocab_size] the row of every token."""
    rows: list[npt.NDArray[np.float32]] = []
    flight = engine.submit(engine.prepare_reading(token_ids, lambda _, piece: rows.append(piece.copy())))
    engine.drive(lambda: flight.done)
    if flight.error is not None:
        raise flight.error
    return np.concatenate(rows)
