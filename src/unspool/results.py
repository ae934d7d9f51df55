"""What a caller gets back: plain data, every figure with its unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from unspool.select.base import Choice
    from unspool.strategy.tree import Tree

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most probable tokens where another may have been drawn."""

    id: int
    text: str
    logprob: float
    """Natural log, under the model's own law, before any rule; minus infinity for a token that it bans."""
    processed_logprob: float
    """Natural log, under the law after all rules; minus infinity for a token that they left out."""


@dataclass(frozen=True, slots=True)
class RuleTrace:
    """What one rule did to the candidates for one token."""

    rule: str
    """Its name, as an order has it."""
    candidates_before: int
    """How many reached it."""
    candidates: int
    """How many it kept."""
    mass: float
    """The probability, as the law was that reached it, of those that it kept."""
    model_mass: float
    """The probability of those that it kept under the model's own law, before any rule."""
    threshold: float
    """The smallest probability, as the law was that reached it, that it kept."""
    shift: float
    """How much of the probability it moved: the total variation distance from the law before to the one
    after, 0 to 1."""
    entropy_before: float
    """Of the law that reached it, in nats."""
    entropy: float
    """Of the law that it left, in nats."""


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and what the model thought of it."""

    id: int
    text: str
    """The text that this token completed; the texts of all tokens make the whole. Empty for the first
    parts of a character that several tokens spell. The last text ends where the result's ends."""
    logprob: float
    """Natural log-probability under the model's own law, before any rule."""
    processed_logprob: float
    """Natural log-probability under the law that it was drawn from, after all rules."""
    rank: int
    """Its place in the model's own law, 0 for the most probable."""
    entropy: float
    """Entropy of the model's own law here, in nats."""
    kept: int
    """How many candidates the rules kept."""
    top_logprobs: tuple[Alternative, ...] = ()
    """The most probable tokens of the model's own law, best first; as many as ``logprobs`` asked for."""
    top_processed_logprobs: tuple[Alternative, ...] = ()
    """The most probable tokens after all rules, best first; as many, or as are left."""
    trace: tuple[RuleTrace, ...] = ()
    """What each rule did here, in order; with ``trace``."""


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt, and what the model and the request's rules thought of it after those before.

    Of a prompt's first token, which nothing comes before, there are no figures: they are ``None``.
    """

    id: int
    text: str
    logprob: float | None = None
    """Natural log-probability under the model's own law."""
    processed_logprob: float | None = None
    """Natural log-probability after all rules, as if the prompt ended before it; minus infinity if they leave
    it out."""
    rank: int | None = None
    entropy: float | None = None
    kept: int | None = None
    top_logprobs: tuple[Alternative, ...] = ()
    top_processed_logprobs: tuple[Alternative, ...] = ()


@dataclass(frozen=True, eq=False)
class Distribution:
    """The law that the token after a prompt is drawn from, and how the rules made it.

    It is the very law of the sampler: token ``ids[i]`` is drawn with ``probabilities[i]``.
    """

    ids: npt.NDArray[np.int32]
    """[n] the candidates that the rules kept, most probable first, those that tie by id."""
    probabilities: npt.NDArray[np.float64]
    """[n] theirs; they sum to 1."""
    entropy_before: float
    """Of the model's own law, in nats."""
    entropy: float
    """Of this law, in nats."""
    top_logprobs: tuple[Alternative, ...]
    """The most probable tokens of the model's own law, best first."""
    top_processed_logprobs: tuple[Alternative, ...]
    """The most probable tokens of this law, best first."""
    trace: tuple[RuleTrace, ...]
    """What each rule did, in order."""

    def __len__(self) -> int:
        return len(self.ids)

    def probability(self, token: int) -> float:
        """That of one token id; 0 where the rules left it out."""
        return float(self.probabilities[self.ids == token].sum())

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it (a log-probability of minus infinity becomes ``None``)."""
        made = {
            "ids": self.ids.tolist(),
            "probabilities": self.probabilities.tolist(),
            "entropy_before": self.entropy_before,
            "entropy": self.entropy,
            "top_logprobs": [asdict(each) for each in self.top_logprobs],
            "top_processed_logprobs": [asdict(each) for each in self.top_processed_logprobs],
            "trace": [asdict(each) for each in self.trace],
        }
        return {name: _finite(value) for name, value in made.items()}


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens in the result, over all candidates."""
    cached_tokens: int = 0
    """Of the prompt's tokens, those that an earlier request had computed."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took each time, in seconds; 0 where it never happened."""

    p50: float = 0.0
    """Median."""
    p99: float = 0.0
    """What 99 of 100 stay within (nearest rank)."""
    largest: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of measured values, in any order."""
        if not values:
            return cls()
        ordered = sorted(values)
        return cls(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1.0)))


@dataclass(frozen=True, slots=True)
class Timing:
    """How a request fared, in seconds of wall time; shared by its candidates."""

    queue_seconds: float
    """From its submission until it got a place in the cache."""
    prefill_seconds: float
    """From then to the first drawn token: computing the prompt, beside whatever else the engine computes."""
    time_to_first_token: float
    """From its submission to the first drawn token, waiting included."""
    decode_seconds: float
    """From the first drawn token to the last."""
    drawn_tokens: int
    """Tokens drawn over all candidates, those cut off by a stop included."""
    decoded_tokens: int
    """Of the drawn tokens, those after each candidate's first: one decoding step each."""
    between_tokens: Spread
    """From one token of a candidate to its next."""
    preemptions: int
    """How often a candidate lost its place in the cache to an earlier one and was computed again."""

    @property
    def tokens_per_second(self) -> float:
        """``decoded_tokens / decode_seconds``, over all candidates; 0 where nothing was decoded."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sample of a request."""

    index: int
    text: str
    token_ids: list[int]
    tokens: list[Token]
    finish_reason: FinishReason
    """``"stop"``: an end-of-text token, a stop token or a stop string. ``"length"``: ``max_tokens``."""
    stop_reason: str | int | None
    """The stop string or the token id that ended the text; ``None`` for ``"length"``."""
    score: float | None = None
    """What a search ranks results by: a beam's ``total`` over a power of the length; ``None``: sampled."""
    total: float | None = None
    """The sum of processed log-probabilities that the score is made of, the token that ended it included."""

    @property
    def logprob(self) -> float:
        """Sum of the tokens' log-probabilities under the model's own law, in nats."""
        return math.fsum(token.logprob for token in self.tokens)

    @property
    def processed_logprob(self) -> float:
        """Sum of the tokens' log-probabilities under the laws that they were drawn from, in nats."""
        return math.fsum(token.processed_logprob for token in self.tokens)

    @property
    def mean_logprob(self) -> float:
        """``logprob`` over the number of tokens; NaN where there is none."""
        return self.logprob / len(self.tokens) if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """``exp(-mean_logprob)``, of the generated text under the model's own law; NaN without tokens."""
        return math.exp(-self.mean_logprob) if self.tokens else math.nan


@dataclass(frozen=True)
class Generation:
    """The result of one request. With ``n > 1`` the top-level fields are those of the first candidate.

    ``str(generation)`` is its text.
    """

    candidates: list[Candidate]
    """All samples, in sample order; one unless ``n`` was given. Those of a search, or that were selected
    from, come best first."""
    seed: int
    """The seed that the tokens were drawn with: given again, it gives the same tokens."""
    usage: Usage
    timing: Timing
    dropped_messages: int = 0
    """How many of a chat's oldest messages did not fit in the context and were left out."""
    prompt_tokens: tuple[PromptToken, ...] = ()
    """The prompt's tokens with their figures; with ``prompt_logprobs``."""
    choice: Choice | None = None
    """What a selection made of its candidates, numbered in sample order; with ``select``."""
    tree: Tree | None = None
    """What a beam search considered, kept and ended, step by step; with ``trace``."""

    @property
    def text(self) -> str:
        """The generated text, without the prompt."""
        return self.candidates[0].text

    @property
    def token_ids(self) -> list[int]:
        """[completion tokens] ids of the generated tokens."""
        return self.candidates[0].token_ids

    @property
    def tokens(self) -> list[Token]:
        """The generated tokens with their figures."""
        return self.candidates[0].tokens

    @property
    def finish_reason(self) -> FinishReason:
        """Why the text ended: ``"stop"`` or ``"length"``."""
        return self.candidates[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token id that ended the text."""
        return self.candidates[0].stop_reason

    @property
    def logprob(self) -> float:
        """Cumulative log-probability of the tokens under the model's own law, in nats."""
        return self.candidates[0].logprob

    @property
    def mean_logprob(self) -> float:
        """Its mean over the tokens; NaN where there is none."""
        return self.candidates[0].mean_logprob

    @property
    def perplexity(self) -> float:
        """``exp(-mean_logprob)``: of the generated text under the model's own law."""
        return self.candidates[0].perplexity

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """What one wants to see of it at a prompt; ``to_dict`` has everything."""
        more = f", {len(self.candidates)} candidates" if len(self.candidates) > 1 else ""
        return (
            f"Generation({self.text!r}, {len(self.token_ids)} tokens, "
            f"finish_reason={self.finish_reason!r}, seed={self.seed}{more})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it (a log-probability of minus infinity becomes ``None``)."""
        candidates = [
            {
                **asdict(c),
                "logprob": c.logprob,
                "processed_logprob": c.processed_logprob,
                "mean_logprob": c.mean_logprob,
                "perplexity": c.perplexity,
            }
            for c in self.candidates
        ]
        first = {name: value for name, value in candidates[0].items() if name != "index"}
        made: dict[str, Any] = {
            **first,
            "seed": self.seed,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "timing": {**asdict(self.timing), "tokens_per_second": self.timing.tokens_per_second},
            "dropped_messages": self.dropped_messages,
        }
        if self.prompt_tokens:
            made["prompt_tokens"] = [asdict(token) for token in self.prompt_tokens]
        if len(candidates) > 1:
            made["candidates"] = candidates
        if self.choice is not None:
            made["choice"] = self.choice.to_dict()
        if self.tree is not None:
            made["tree"] = self.tree.to_dict()
        return {name: _finite(value) for name, value in made.items()}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A streamed piece of one candidate. The texts of a candidate's chunks make its whole text.

    ``str(chunk)`` is its text.
    """

    text: str
    tokens: tuple[Token, ...]
    """Tokens that became certain with this piece; one whose text may yet begin a stop string waits."""
    index: int = 0
    """Which candidate it belongs to."""
    finish_reason: FinishReason | None = None
    """Set on a candidate's last chunk."""
    stop_reason: str | int | None = None
    generation: Generation | None = None
    """The whole result, on the very last chunk."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Score:
    """How probable the model finds a text."""

    token_ids: list[int]
    texts: list[str]
    logprobs: list[float | None]
    """[tokens] natural log-probability of each token after those before it; ``None`` for the first,
    which nothing comes before."""

    @property
    def total(self) -> float:
        """Sum of the log-probabilities, in nats."""
        return math.fsum(p for p in self.logprobs if p is not None)

    @property
    def count(self) -> int:
        """How many tokens have a log-probability."""
        return sum(p is not None for p in self.logprobs)

    @property
    def perplexity(self) -> float:
        """``exp(-total / count)``; NaN where no token has a log-probability."""
        return math.exp(-self.total / self.count) if self.count else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it."""
        made = {**asdict(self), "total": self.total, "count": self.count, "perplexity": self.perplexity}
        return {name: _finite(value) for name, value in made.items()}


def _finite(value: Any) -> Any:
    """``value`` with every number that JSON cannot say in place of which stands ``None``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
