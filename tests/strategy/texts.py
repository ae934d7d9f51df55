"""A language model that is a table, its texts by enumeration, and an engine for strategies alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unspool.results import FinishReason
from unspool.sampling.distribution import Distribution
from unspool.strategy import Figures, Law, Method, Offer, RowResult, Strategy, Task

Tokens = tuple[int, ...]


class Text(NamedTuple):
    """A finished text."""

    tokens: Tokens
    total: float


@dataclass
class Toy:
    """Random log-probabilities after every beginning of a text; token ids from 0.

    ends: tokens that end a text. few: leaves so many tokens out of each law. stop: whether these tokens end
    with a stop string. likely: what ends have more than other tokens. above: added to every score, which then
    is none of a law, as Transformers may leave it.
    """

    vocab_size: int
    max_tokens: int
    ends: frozenset[int] = frozenset({0})
    seed: int = 0
    few: int = 0
    step: float = 0.0
    likely: float = 0.0
    above: float = 0.0
    stop: Callable[[Tokens], bool] | None = None
    known: dict[Tokens, dict[int, float]] = field(default_factory=dict)

    def law(self, tokens: Tokens) -> dict[int, float]:
        """Log-probabilities of the tokens that may come next; multiples of ``step``, so that some tie."""
        if tokens not in self.known:
            rng = random_after(tokens, self.seed, 7)
            z = rng.normal(0, 1.5, self.vocab_size)
            z[sorted(self.ends)] += self.likely
            left = sorted(rng.permutation(self.vocab_size)[self.few :].tolist())
            z = z[left] - np.log(np.exp(z[left]).sum())
            if self.step:
                z = np.round(z / self.step) * self.step
            self.known[tokens] = dict(zip(left, (z + self.above).tolist(), strict=True))
        return self.known[tokens]

    def ended(self, tokens: Tokens) -> bool:
        return bool(tokens) and (len(tokens) == self.max_tokens or self.stopped(tokens))

    def stopped(self, tokens: Tokens) -> bool:
        return tokens[-1] in self.ends or (self.stop is not None and self.stop(tokens))

    def texts(self, tokens: Tokens = (), total: float = 0.0) -> Iterator[Text]:
        """Every finished text that goes on from these tokens."""
        if self.ended(tokens):
            yield Text(tokens, total)
        else:
            for token, logprob in self.law(tokens).items():
                yield from self.texts((*tokens, token), total + logprob)

    def task(self, n: int = 1, **others: Any) -> Task:
        return Task(n, self.max_tokens, self.ends, self.vocab_size, stops=self.stop is not None, **others)


def score(text: Text, penalty: float) -> float:
    return float(text.total / len(text.tokens) ** penalty)


def best(texts: Sequence[Text], penalty: float) -> list[Text]:
    return sorted(texts, key=lambda text: -score(text, penalty))


def plain_beam(
    toy: Toy,
    width: int,
    penalty: float,
    stopping: Any,
    transformers: bool = False,
    gaps: list[float] | None = None,
) -> list[Text]:
    """Beam search as a book has it: lists, sorted anew, every candidate of the vocabulary.

    gaps: takes how far apart the numbers are by whose order it chooses.
    """
    live, done = [Text((), 0.0)], []
    gaps = [] if gaps is None else gaps
    for length in range(1, toy.max_tokens + 1):
        candidates = [
            (total + logprob, (*tokens, token))
            for tokens, total in live
            for token, logprob in sorted(toy.law(tokens).items(), key=lambda item: (-item[1], item[0]))
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        most = max(2, 1 + len(toy.ends)) * width
        goers = [candidate for candidate in candidates if not toy.ended(candidate[1])]
        for ranked in (candidates, goers):  # what may finish, and what lives
            gaps += apart([total for total, _ in ranked[width - 1 : width + 1]])
        candidates = candidates[:most]
        done += [Text(tokens, total) for total, tokens in candidates[:width] if toy.ended(tokens)]
        live = [Text(tokens, total) for total, tokens in candidates if not toy.ended(tokens)][:width]
        done = best(done, penalty)
        gaps += apart([score(text, penalty) for text in done])
        done = done[:width]
        if not live or (len(done) == width and stopping is True):
            break
        if len(done) == width:
            lengths = {False: [length], "never": [length + 1, toy.max_tokens]}[stopping]
            if transformers and stopping == "never":
                lengths = [toy.max_tokens if penalty > 0 else length]
            promised, worst = max(live[0].total / at**penalty for at in lengths), score(done[-1], penalty)
            gaps += apart([promised, worst])
            if promised <= worst:
                break
    return done


def apart(values: list[float]) -> list[float]:
    return [abs(one - other) for one, other in pairwise(values)]


@dataclass(eq=False)
class Branch:
    number: int
    tokens: list[int]
    committed: int = 0
    reason: FinishReason | None = None
    dropped: bool = False
    score: float | None = None
    total: float = 0.0
    figures: list[Figures] = field(default_factory=list)

    @property
    def growing(self) -> bool:
        return self.reason is None and not self.dropped


class Driver:
    """Takes steps as the engine does, and holds a strategy to what it promises."""

    def __init__(self, toy: Toy, strategy: Strategy, seed: int = 0) -> None:
        self.toy, self.strategy, self.seed = toy, strategy, seed
        self.branches = [Branch(number, []) for number in range(strategy.width)]
        self.steps = 0
        self.scored: list[Branch] = []

    def run(self) -> list[Branch]:
        """The results, best first; of those that tie, the earlier."""
        while growing := [branch for branch in self.branches if branch.growing]:
            before = {branch: len(branch.tokens) for branch in growing}
            self.strategy.grow([self.row(branch) for branch in growing], self)
            for branch, length in before.items():
                assert not branch.growing or len(branch.tokens) > length
            self.branches = [branch for branch in self.branches if not branch.dropped]
            assert all(branch.committed == len(branch.tokens) for branch in self.branches)
            self.steps += 1
            assert self.steps <= self.toy.max_tokens
        ranks = {branch: (-(branch.score or 0.0), at) for at, branch in enumerate(self.scored)}
        return sorted(self.branches, key=ranks.__getitem__)

    def row(self, branch: Branch) -> RowResult:
        law, want = self.toy.law(tuple(branch.tokens)), self.strategy.want
        noise = np.zeros(self.toy.vocab_size)
        if want.perturbed:
            noise = random_after(branch.tokens, self.seed, 3).gumbel(size=self.toy.vocab_size)
        order = sorted(law, key=lambda token: (-law[token] - noise[token], token))
        offers = tuple(
            Offer(t, law[t], figures_of(law[t]), float(law[t] + noise[t])) for t in order[: want.offers]
        )
        ids = sorted(law)
        made = Distribution.of(int32(ids), np.array([law[t] for t in ids], np.float32))
        whole = Law(made, np.array([law[t] for t in ids]), made)
        return RowResult(branch, order[0], offers[0].figures, offers, whole if want.law else None)

    def append(self, branch: Branch, token: int, figures: Figures) -> None:
        assert branch.growing
        assert token in self.toy.law(tuple(branch.tokens))
        branch.tokens.append(token)
        branch.figures.append(figures)

    def commit(self, branch: Branch) -> bool:
        assert branch.growing
        while branch.committed < len(branch.tokens):
            branch.committed += 1
            now = tuple(branch.tokens[: branch.committed])
            if self.toy.ended(now):
                branch.reason = "stop" if self.toy.stopped(now) else "length"
                del branch.tokens[branch.committed :]
                return True
        return False

    def fork(self, branch: Branch, length: int | None = None) -> Branch:
        assert not branch.dropped
        twin = Branch(len(self.branches), branch.tokens[:length])
        twin.committed = min(branch.committed, len(twin.tokens))
        twin.figures = branch.figures[:length]
        self.branches.append(twin)
        return twin

    def drop(self, branch: Branch) -> None:
        assert not branch.dropped
        branch.dropped = True

    def finish(self, branch: Branch, reason: FinishReason) -> None:
        if not self.commit(branch):
            branch.reason = reason

    def score(self, branch: Branch, score: float, total: float) -> None:
        branch.score, branch.total = score, total
        self.scored.append(branch)

    def hidden(self, branch: Branch, first: int) -> npt.NDArray[np.float32]:
        raise NotImplementedError

    def tokens(self, branch: Branch) -> Sequence[int]:
        return branch.tokens


def random_after(tokens: Sequence[int], seed: int, purpose: int) -> np.random.Generator:
    """Random numbers of these tokens; their number is told, since NumPy takes no note of zeros at the end."""
    return np.random.default_rng([seed, purpose, len(tokens), *tokens])


def int32(values: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def figures_of(logprob: float) -> Figures:
    return Figures(logprob, logprob, 0.0, 0.0, 0, 0)


def search(toy: Toy, method: Method, n: int = 1, seed: int = 0, **others: Any) -> list[Text]:
    """What a method finds, best first, as it scores it."""
    made = Driver(toy, method.begin(toy.task(n, **others)), seed).run()
    penalty = getattr(method, "length_penalty", 0.0)
    for branch in made:
        summed = math.fsum(figures.processed_logprob for figures in branch.figures)
        assert math.isclose(branch.total, summed, rel_tol=1e-5, abs_tol=1e-5)  # a law's own are float32
        assert branch.score == score(Text(tuple(branch.tokens), branch.total), penalty)
    return [Text(tuple(branch.tokens), branch.total) for branch in made]
