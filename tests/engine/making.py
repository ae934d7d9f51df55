"""Engines on tiny backends, and what tests ask of them."""

from __future__ import annotations

from typing import Unpack

from tests.reference.llama import ReferenceBackend
from tests.reference.scripted import ScriptedBackend
from tests.reference.tiny import TinyTokenizer, random_weights, tiny_spec
from unspool.backend.base import Backend
from unspool.engine.engine import Engine
from unspool.model.detokenizer import IncrementalDetokenizer
from unspool.params import SamplingParams, Settings
from unspool.results import Chunk, Generation

SPEC = tiny_spec(context_length=128)
WEIGHTS = random_weights(SPEC)
TOKENIZER = TinyTokenizer()


def make_engine(backend: Backend | None = None, num_blocks: int = 64) -> Engine:
    """An engine on a tiny random model, or on another backend."""
    return Engine(
        ReferenceBackend(SPEC, WEIGHTS) if backend is None else backend,
        TOKENIZER,
        lambda skip: IncrementalDetokenizer(TOKENIZER, skip_special=skip),  # type: ignore[arg-type]
        num_blocks=num_blocks,
    )


def scripted(text: str | list[int], prompt_tokens: int = 1) -> Engine:
    """An engine that says a text, a token for each byte, or given tokens, and then ends."""
    said = [TOKENIZER.ids[TOKENIZER.characters[b]] for b in text.encode()] if isinstance(text, str) else text
    return make_engine(ScriptedBackend(SPEC, [0] * prompt_tokens + said + [2] * 120))


def generate(engine: Engine, prompt: list[int], **settings: Unpack[Settings]) -> Generation:
    run = engine.start(prompt, SamplingParams(**settings))
    for _ in run.steps():
        pass
    assert engine.pool.num_free == engine.pool.num_blocks
    return run.generation()


def stream(engine: Engine, prompt: list[int], **settings: Unpack[Settings]) -> list[Chunk]:
    run = engine.start(prompt, SamplingParams(**settings))
    chunks = []
    for grown in run.steps():
        chunks += [chunk for branch in grown if (chunk := branch.take_chunk()) is not None]
    return chunks
