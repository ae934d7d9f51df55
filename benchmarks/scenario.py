"""What every engine is timed at; imported by the peers' interpreters too, so only the standard library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """Prompts of one length, and the decoding steps that are timed after them."""

    name: str
    title: str
    sequences: int
    """How many prompts decode together."""
    prompt: int
    """Tokens of each prompt."""
    steps: int
    """Timed steps, one token for each sequence; 0 times the prompt itself, up to its last row of logits."""
    repeats: int = 1
    """How often an engine does it in one turn, the median of which counts; more for what is short."""

    @property
    def tokens(self) -> int:
        """How many tokens the timed part computes."""
        return self.sequences * self.steps if self.steps else self.sequences * self.prompt

    @property
    def mean_context(self) -> float:
        """Cached tokens that a timed decoding step attends to for each sequence, on average."""
        return self.prompt + self.steps / 2

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)


SCENARIOS = (
    Scenario("decode-1", "batch 1, context 32 to 160", 1, 32, 128, repeats=3),
    Scenario("decode-4", "batch 4, context 32 to 96", 4, 32, 64),
    Scenario("decode-8", "batch 8, context 32 to 96", 8, 32, 64),
    Scenario("decode-32", "batch 32, context 32 to 96", 32, 32, 64),
    Scenario("prefill-512", "prefill of 512", 1, 512, 0, repeats=7),
    Scenario("context-2000", "batch 1, context 2000 to 2032", 1, 2000, 32),
)
"""The scenarios of ``benchmarks.speed``, from one stream to many and from short to long."""


def prompts_of(scenario: Scenario) -> list[list[int]]:
    """The prompts of a scenario: token ids that differ between sequences and positions.

    What the ids say does not matter to the time a step takes; they stay clear of the special tokens that
    vocabularies keep at their beginning.
    """
    return [
        [1000 + (7919 * (sequence + 1) + 104729 * position) % 20000 for position in range(scenario.prompt)]
        for sequence in range(scenario.sequences)
    ]
