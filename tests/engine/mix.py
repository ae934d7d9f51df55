"""Requests of every kind, and what each gets alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unspool.cache import blocks_for_tokens
from unspool.params import SamplingParams
from unspool.results import Candidate

VOCABULARY = (
    "the a of and to in is was that it for on with as at by from river mountain engine paper seven green "
    "language window question answer history water number letter market winter Café naïve Zürich 東京 🙂 "
    "understand compute remember build carry write because although therefore while never always"
)


@dataclass(frozen=True)
class Asked:
    """A prompt and how it is to be continued."""

    prompt: list[int]
    params: SamplingParams

    @property
    def blocks(self) -> int:
        """Cache blocks that one sample may fill."""
        return blocks_for_tokens(len(self.prompt) + (self.params.max_tokens or 0))

    def with_priority(self, priority: int) -> Asked:
        """The same with another priority."""
        return replace(self, params=replace(self.params, priority=priority))


@dataclass(frozen=True)
class Mix:
    """Requests, and the candidates that each has alone."""

    requests: list[Asked]
    alone: list[list[Candidate]]

    def only(self, indices: Sequence[int]) -> Mix:
        """Some of them, in the order of ``indices``."""
        return Mix([self.requests[i] for i in indices], [self.alone[i] for i in indices])

    def shuffled(self, seed: int) -> Mix:
        """The same in another order."""
        order = np.random.default_rng(seed).permutation(len(self.requests))
        return self.only(order.tolist())

    def first_come(self) -> Mix:
        """The same, none with a priority over another."""
        return replace(self, requests=[asked.with_priority(0) for asked in self.requests])

    def rising(self) -> Mix:
        """The same, each with a priority over those before it."""
        return replace(self, requests=[asked.with_priority(i) for i, asked in enumerate(self.requests)])

    def by_size(self, parts: int) -> list[Mix]:
        """As many mixes, from the requests that need the fewest blocks to those that need most."""
        order = sorted(range(len(self.requests)), key=lambda i: self.requests[i].blocks)
        return [self.only(sorted(part.tolist())) for part in np.array_split(order, parts)]

    @property
    def blocks(self) -> int:
        """The fewest cache blocks in which each of them fits."""
        return max(asked.blocks for asked in self.requests)

    def check(self, made: Sequence[list[Candidate]]) -> None:
        """Assert that every token, text and figure of every candidate is what it is alone."""
        assert len(made) == len(self.alone)
        wrong = [i for i, (ours, alone) in enumerate(zip(made, self.alone, strict=True)) if ours != alone]
        if wrong:
            first = wrong[0]
            asked, what = self.requests[first], difference(made[first], self.alone[first])
            raise AssertionError(
                f"{len(wrong)} of {len(made)} requests differ from what they are alone: {wrong}. "
                f"The first, of {len(asked.prompt)} tokens, {asked.params}, {what}"
            )


def difference(made: Sequence[Candidate], alone: Sequence[Candidate]) -> str:
    """Where two lists of candidates part."""
    if len(made) != len(alone):
        return f"has {len(made)} candidates, not {len(alone)}"
    ours, expected = next((a, b) for a, b in zip(made, alone, strict=True) if a != b)
    for at, (token, wanted) in enumerate(zip(ours.tokens, expected.tokens, strict=False)):
        if token != wanted:
            return f"sample {expected.index}, token {at}: {token}, not {wanted}"
    return f"sample {expected.index}: {replace(ours, tokens=[])}, not {replace(expected, tokens=[])}"


def mixed_requests(
    count: int,
    encode: Callable[[str], list[int]],
    stops: Sequence[str],
    *,
    longest: int = 1500,
    seed: int = 0,
) -> list[Asked]:
    """Requests whose every setting is drawn by itself; the same for a seed.

    Prompts have 1 to ``longest`` tokens, most of them under 60, one in sixteen more than two thirds of
    ``longest``; a third begin with one of three system prompts, and half of these have a cache salt.

    encode: a text's token ids.
    stops: strings that the model is likely to say.
    """
    rng = np.random.default_rng(seed)
    systems = [words(encode, size, rng) for size in (longest // 30, longest // 8, longest * 2 // 3)]
    made = []
    for i in range(count):
        size = {0: 1, 1: longest}.get(i) or prompt_tokens(i, longest, rng)
        prompt: list[int] = []
        salt = None
        fitting = [system for system in systems if len(system) < size]
        if fitting and rng.random() < 0.6:
            prompt, salt = fitting[-1], pick(rng, None, None, "one", "other")
        prompt = prompt + words(encode, size - len(prompt), rng)
        made.append(Asked(prompt, drawn_params(rng, prompt, stops, salt, long=size > longest // 5)))
    return made


def words(encode: Callable[[str], list[int]], size: int, rng: np.random.Generator) -> list[int]:
    """``size`` tokens of words in any order."""
    ids: list[int] = []
    known = VOCABULARY.split()
    while len(ids) < size:
        ids += encode(" ".join(rng.choice(known, 8)) + pick(rng, ". ", ", ", "\n"))
    return ids[:size]


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    """One of the choices."""
    return choices[rng.integers(len(choices))]


def prompt_tokens(i: int, longest: int, rng: np.random.Generator) -> int:
    """How long request ``i``'s prompt is: of sixteen one is long, two are of middle length."""
    if i % 16 == 2:
        return int(rng.integers(longest * 2 // 3, longest + 1))
    if i % 8 == 4:
        return int(rng.integers(longest // 15, longest // 4))
    return int(rng.integers(1, 60 if i % 2 else max(2, longest // 12)))


def drawn_rules(rng: np.random.Generator, prompt: list[int]) -> dict[str, Any]:
    """One more rule, or several, of every kind; half of them remember what was said."""
    some = sorted({int(token) for token in rng.choice(prompt, 4)})
    rules: list[dict[str, Any]] = [
        {"frequency_penalty": float(rng.uniform(-1, 2)), "presence_penalty": float(rng.uniform(-1, 2))},
        {"no_repeat_ngram_size": int(rng.integers(1, 4))},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": [some[:1], some[-2:]]},
        {"bad_words": [some[:1], some], "logit_bias": {some[-1]: 2.5}},
        {"min_tokens": int(rng.integers(1, 20)), "typical_p": 0.8},
        {"suppress_eos": True, "xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"mirostat": 1, "mirostat_tau": 2.0},
        {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.5, "order": pick_order(prompt)},
        {"adaptive_target": 0.4, "top_n_sigma": 1.5},
        {"dynatemp_range": 0.5, "tail_free": 0.9, "top_a": 0.1},
        {"top_h": 0.6, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-3},
        {"p_less": True, "allowed_token_ids": sorted({*prompt, *range(40, 80)})},
        {"logits_processors": [halve_repeats], "trace": True},
        {"prompt_logprobs": 2},
    ]
    return rules[rng.integers(len(rules))]


def pick_order(prompt: list[int]) -> str | None:
    """The order of rules, by a prompt's length."""
    return "llama.cpp" if len(prompt) % 2 else None


def halve_repeats(token_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A caller's own rule: what was said is less likely."""
    logits[np.array(token_ids)] -= np.float32(0.7)
    return logits


def drawn_params(
    rng: np.random.Generator, prompt: list[int], stops: Sequence[str], salt: str | None, *, long: bool
) -> SamplingParams:
    """Settings of every kind; after a long prompt, fewer tokens."""
    penalty = pick(rng, None, None, 1.0, 1.1, 1.5, 0.8)
    lengths = (1, 2, 5, 9, 17, 33, 40) if long else (1, 2, 5, 8, 12, 16, 24, 33, 60, 100)
    return SamplingParams(
        temperature=pick(rng, None, 0.0, 0.0, 0.3, 0.7, 1.0, 1.5),
        top_k=pick(rng, None, None, 1, 5, 40, 100000),
        top_p=pick(rng, None, None, 0.5, 0.9, 0.97, 1.0),
        min_p=pick(rng, None, None, None, 0.02, 0.2),
        repetition_penalty=penalty,
        penalty_scope=None if penalty is None else pick(rng, None, "output", "all", 1, 7, 300),
        max_tokens=pick(rng, *lengths),
        stop=rng.choice(stops, 3).tolist() if rng.random() < 0.35 else (),
        stop_token_ids=rng.choice(prompt, 2).tolist() if rng.random() < 0.25 else (),
        include_stop=bool(rng.random() < 0.3),
        skip_special_tokens=bool(rng.random() < 0.7),
        ignore_eos=bool(rng.random() < 0.5),
        **(drawn_rules(rng, prompt) if rng.random() < 0.5 else {}),
        seed=int(rng.integers(2**63)),
        n=pick(rng, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 8),
        logprobs=int(rng.integers(6)),
        priority=pick(rng, 0, 0, 0, 1, 7, -1),
        cache_salt=salt,
    )
