"""How well unspool's block pool is used: slots that hold no token, and blocks that samples share."""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.workload import random_prompt
from unspool import AsyncLLM, SamplingParams
from unspool.backend.base import BLOCK_SIZE

SHORTEST, LONGEST = 50, 1500
"""Tokens of a request of the mix, prompt and answer together."""
MIX_REQUESTS = 64
MIX_CACHE_TOKENS = 16384
"""Room for about twenty of them at a time; the others wait."""
SAMPLES, SAMPLED_PROMPT, SAMPLED_TOKENS = 8, 1000, 120
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class CacheFigures:
    """What was measured, once: it depends on no clock."""

    waste_mean: float
    """Slots of held blocks that hold no token, over all slots of held blocks; the mean over time."""
    waste_most: float
    sampled_blocks: int
    """The most blocks that the samples of one prompt held together."""
    prompt_blocks: int
    """Blocks of the prompt once, its partial one not counted: each sample has a copy of that."""
    own_blocks: int
    """Blocks that each sample needs beside those."""

    @property
    def shared_blocks(self) -> int:
        """The prompt's blocks once and each sample's own."""
        return self.prompt_blocks + SAMPLES * self.own_blocks

    @property
    def unshared_blocks(self) -> int:
        """What as many requests that share nothing would hold."""
        return SAMPLES * (self.prompt_blocks + self.own_blocks)

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)


def mix() -> list[tuple[list[int], int]]:
    """Prompts and how many tokens to generate, their sums spread evenly from ``SHORTEST`` to ``LONGEST``."""
    draw = random.Random("mix")
    made = []
    for i in range(MIX_REQUESTS):
        length = SHORTEST + round(i * (LONGEST - SHORTEST) / (MIX_REQUESTS - 1))
        prompt = max(1, round(length * draw.uniform(0.2, 0.8)))
        made.append((random_prompt(prompt, "mix", i), length - prompt))
    draw.shuffle(made)
    return made


async def exhaust(engine: AsyncLLM, prompt: list[int], tokens: int) -> None:
    """Read one request to its end."""
    async for _ in engine.generate(prompt, temperature=0.0, max_tokens=tokens, ignore_eos=True):
        pass


async def waste(engine: AsyncLLM) -> list[float]:
    """The share of waste every ``POLL_SECONDS`` while the mix is served, all of it asked at once."""
    seen = []
    tasks = [asyncio.create_task(exhaust(engine, prompt, tokens)) for prompt, tokens in mix()]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(POLL_SECONDS)
        use = engine.stats().cache
        if use.held:
            seen.append(use.waste)
    await asyncio.gather(*tasks)
    return seen


async def most_held(engine: AsyncLLM) -> int:
    """The most blocks held while ``SAMPLES`` samples of one prompt are drawn."""
    most = 0
    prompt = random_prompt(SAMPLED_PROMPT, "samples")
    params = SamplingParams(n=SAMPLES, temperature=1.0, max_tokens=SAMPLED_TOKENS, ignore_eos=True, seed=1)
    async for _ in engine.generate(prompt, params):
        most = max(most, engine.stats().cache.held)
    return most


async def measure(model: Path, threads: int) -> CacheFigures:
    """Both, each in a fresh engine, so that no earlier request's blocks are kept."""
    async with AsyncLLM(model, threads=threads, cache_tokens=MIX_CACHE_TOKENS) as engine:
        wasted = await waste(engine)
    async with AsyncLLM(model, threads=threads, cache_tokens=MIX_CACHE_TOKENS) as engine:
        held = await most_held(engine)
    prompt_blocks = SAMPLED_PROMPT // BLOCK_SIZE
    own_blocks = -(-(SAMPLED_PROMPT + SAMPLED_TOKENS - 1) // BLOCK_SIZE) - prompt_blocks
    return CacheFigures(statistics.fmean(wasted), max(wasted), held, prompt_blocks, own_blocks)
