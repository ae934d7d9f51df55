"""What every engine is asked to serve; imported by the peers' interpreters too, so only the standard library.

Prompts are random token ids from a seed that the rounds change, so that no request begins like an earlier
one and a prefix cache helps nobody.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

LOWEST_ID, HIGHEST_ID = 1000, 30000
"""Prompts keep clear of the special tokens that vocabularies keep at their beginning."""


def random_prompt(length: int, *seeds: int | str) -> list[int]:
    """``length`` token ids, the same for the same seeds."""
    draw = random.Random("/".join(map(str, seeds)))
    return [draw.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(length)]


@dataclass(frozen=True)
class Batch:
    """Requests that are given all at once, and timed from the call to the last one's end."""

    name: str
    title: str
    requests: int
    sampled: bool = False
    """At ``TEMPERATURE`` from the ``TOP_K`` most probable tokens; else greedy."""
    prompt: int = 32
    """Tokens of each prompt."""
    tokens: int = 128
    """Tokens that each request generates, past any end of text."""

    @property
    def generated(self) -> int:
        """Generated tokens of all requests."""
        return self.requests * self.tokens

    def prompts(self, seed: int) -> list[list[int]]:
        """[requests, prompt] token ids, others for another seed."""
        return [random_prompt(self.prompt, seed, self.name, i) for i in range(self.requests)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)


TEMPERATURE, TOP_K = 0.8, 50

BATCHES = (
    Batch("batch-1", "1 request, greedy", 1),
    Batch("batch-32", "32 requests, greedy", 32),
    Batch("batch-32-sampled", f"32 requests, temperature {TEMPERATURE}, top-k {TOP_K}", 32, sampled=True),
    Batch("batch-256", "256 requests, greedy", 256),
)
"""What the throughput of ``benchmarks.serving`` is measured on."""


@dataclass(frozen=True)
class Ask:
    """One request of a load."""

    kind: str
    """``"chat"`` or ``"long"``."""
    prompt: list[int]
    tokens: int
    """Tokens to generate, past any end of text."""


@dataclass(frozen=True)
class MixedLoad:
    """Clients that chat without a pause, and long prompts that arrive by the clock.

    Each client asks again as soon as its answer is complete, so that ``clients`` chats are always in
    flight; its first answer is shortened, so that answers do not all end at once. From ``settle`` seconds
    on, when counting begins, a long prompt arrives every ``interval`` seconds, whatever the engine has
    done. At ``seconds`` nobody asks any more and counting ends. Every engine gets the same prompts, by
    the seed; how many chats there are in all depends on how fast they are answered.
    """

    seed: int
    seconds: float = 30.0
    settle: float = 2.0
    interval: float = 2.0
    clients: int = 16
    chat_prompt: int = 40
    chat_tokens: int = 64
    long_prompt: int = 1000
    long_tokens: int = 32

    def chat(self, client: int, number: int) -> Ask:
        """What a client asks the ``number``-th time, from 0."""
        part = (client + 1) / self.clients if number == 0 else 1.0
        tokens = max(1, round(part * self.chat_tokens))
        return Ask("chat", random_prompt(self.chat_prompt, self.seed, "chat", client, number), tokens)

    def arrivals(self) -> Iterator[tuple[float, Ask]]:
        """When each long prompt arrives, in seconds from the beginning."""
        number, due = 0, self.settle
        while due < self.seconds:
            prompt = random_prompt(self.long_prompt, self.seed, "long", number)
            yield due, Ask("long", prompt, self.long_tokens)
            number += 1
            due = self.settle + number * self.interval

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)
