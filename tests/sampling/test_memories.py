"""What a branch's memory says is what counting anew says, after any tokens, in any scope, after forks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling.plans import UNMOVED
from unspool.sampling.chain import Chain
from unspool.sampling.rules import (
    AdaptiveP,
    BadWords,
    Custom,
    Dry,
    Facts,
    FrequencyPenalty,
    MinimumTokens,
    Mirostat,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    Scope,
)
from unspool.sampling.rules.matches import common_prefixes

Tokens = list[int]
Amounts = dict[int, float]
"""What a rule acts on, and by how much."""


def in_scope(scope: Scope, prompt: Tokens, output: Tokens) -> Tokens:
    if scope == "output":
        return output
    return prompt + output if scope == "all" else (prompt + output)[-scope:]


def counted(penalty: Callable[[int], float]) -> Callable[[Tokens], Amounts]:
    return lambda seen: {token: penalty(count) for token, count in Counter(seen).items()}


def repeated(seen: Tokens, n: int) -> Amounts:
    """Tokens that would complete an n-gram again."""
    grams = {tuple(seen[i : i + n]) for i in range(len(seen) - n + 1)}
    end = tuple(seen[len(seen) - (n - 1) :])
    return {gram[-1]: 0.0 for gram in grams if gram[:-1] == end}


def penalized_by_dry(
    seen: Tokens, multiplier: float, base: float, allowed: int, breakers: Sequence[tuple[int, ...]]
) -> Amounts:
    """Every suffix that no breaker ends in, at every earlier place, and the token after it."""
    n = len(seen)
    ends = [
        i + len(breaker)
        for breaker in breakers
        for i in range(n - len(breaker) + 1)
        if tuple(seen[i : i + len(breaker)]) == breaker
    ]
    longest: dict[int, int] = {}
    for length in range(allowed, n - max(ends, default=0) + 1):
        for end in range(length, n):
            if seen[end - length : end] == seen[n - length :]:
                longest[seen[end]] = max(length, longest.get(seen[end], 0))
    return {
        token: -multiplier * base ** (length - allowed)
        for token, length in longest.items()
        if (token,) not in breakers
    }


def completed(tokens: Tokens, words: Sequence[tuple[int, ...]]) -> Amounts:
    return {word[-1]: 0.0 for word in words if tokens[len(tokens) - len(word) + 1 :] == list(word[:-1])}


SCOPES: tuple[Scope, ...] = ("output", "all", 1, 2, 5, 9)
scopes: st.SearchStrategy[Scope] = st.sampled_from(SCOPES)
sentences = st.lists(st.integers(0, 3), max_size=24)
breakers = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3)


@st.composite
def remembering(draw: st.DrawFn) -> tuple[Rule, Callable[[Tokens, Tokens], Amounts]]:
    """A rule, and what it acts on after a prompt and an output."""
    scope: Scope = draw(scopes)
    which = draw(st.integers(0, 6))
    n = draw(st.integers(1, 4))
    words = tuple(draw(breakers))
    if which == 6:
        words = tuple(word for word in words if word)

    def of_scope(rule: Callable[[Tokens], Amounts]) -> Callable[[Tokens, Tokens], Amounts]:
        return lambda prompt, output: rule(in_scope(scope, prompt, output))

    return (
        (RepetitionPenalty(1.5, scope), of_scope(counted(lambda _: 0.0))),
        (FrequencyPenalty(0.3, scope), of_scope(counted(lambda count: -0.3 * count))),
        (PresencePenalty(-0.4, scope), of_scope(counted(lambda _: 0.4))),
        (NoRepeatNgram(n, scope), of_scope(lambda seen: repeated(seen, n))),
        (
            Dry(0.8, 1.75, n, words, scope),
            of_scope(lambda seen: penalized_by_dry(seen, 0.8, 1.75, n, words)),
        ),
        (BadWords(words), lambda prompt, output: completed(prompt + output, words)),
        (
            MinimumTokens(n, (2, 0)),
            lambda prompt, output: {0: 0.0, 2: 0.0} if len(output) < n else {},
        ),
    )[which]


def said(rule: Rule, memory: object) -> Amounts:
    tokens, amounts = memory.tokens, memory.amounts  # type: ignore[attr-defined]
    assert tokens.dtype == np.int32
    assert len(set(tokens.tolist())) == len(tokens)
    assert len(amounts) in (0, len(tokens))
    return dict(zip(tokens.tolist(), amounts.tolist() or [0.0] * len(tokens), strict=True))


@given(remembering(), sentences, sentences, sentences, sentences)
def test_a_memory_is_a_recount(
    rule_and_definition: tuple[Rule, Callable[[Tokens, Tokens], Amounts]],
    prompt: Tokens,
    before: Tokens,
    one: Tokens,
    other: Tokens,
) -> None:
    rule, definition = rule_and_definition
    memory = rule.memory(prompt)
    assert memory is not None
    branches = [(memory, before, list[int]())]
    output: Tokens = []
    for token in before:
        assert said(rule, memory) == pytest.approx(definition(prompt, output))
        memory.extend(token, UNMOVED)
        output.append(token)
    branches = [(memory, one, list(output)), (memory.fork(), other, list(output))]
    longest = max(len(one), len(other))
    for i in range(longest + 1):  # in turn, so that what one learns the other would show
        for branch, tokens, so_far in branches:
            assert said(rule, branch) == pytest.approx(definition(prompt, so_far))
            if i < len(tokens):
                branch.extend(tokens[i], UNMOVED)
                so_far.append(tokens[i])


@given(remembering(), sentences, sentences)
def test_where_the_prompt_ends_matters_to_a_scope_of_the_output_alone(
    rule_and_definition: tuple[Rule, Callable[[Tokens, Tokens], Amounts]], prompt: Tokens, output: Tokens
) -> None:
    rule, _ = rule_and_definition
    if getattr(rule, "scope", "all") == "output" or isinstance(rule, MinimumTokens):
        return
    grown, given_whole = rule.memory(prompt), rule.memory(prompt + output)
    assert grown is not None
    for token in output:
        grown.extend(token, UNMOVED)
    assert said(rule, grown) == pytest.approx(said(rule, given_whole))


@given(st.lists(st.integers(0, 2), max_size=60))
def test_common_prefixes_are_counted_token_by_token(tokens: Tokens) -> None:
    expected = [
        next((n for n in range(len(tokens) - i) if tokens[n] != tokens[i + n]), len(tokens) - i)
        for i in range(len(tokens))
    ]
    assert common_prefixes(tokens) == [0, *expected[1:]][: len(tokens)]


def test_a_long_prompt_and_its_repeats_are_taken_in_at_once() -> None:
    prompt = [1, 2, 3, 4] * 50_000
    assert said(Dry(1.0, 1.0), Dry(1.0, 1.0).memory(prompt)) == {1: -1.0}
    assert said(NoRepeatNgram(6, "all"), NoRepeatNgram(6, "all").memory(prompt)) == {1: 0.0}


def test_counts_outgrow_their_first_room() -> None:
    memory = FrequencyPenalty(1.0, 150).memory(range(1000))
    for token in range(1000, 1300):
        memory.extend(token % 7 + token, UNMOVED)
    tokens = [*range(1000), *(token % 7 + token for token in range(1000, 1300))][-150:]
    assert said(FrequencyPenalty(1.0), memory) == {t: -float(c) for t, c in Counter(tokens).items()}


@pytest.mark.parametrize(
    ("scope", "breakers", "cost"),
    [
        (11, (), 8.0),
        (4, ((1, 2, 2),), 4.0),  # it begins out of scope: three tokens repeat
        (11, ((5, 2),), 4.0),
        (11, ((5, 2), (1, 2, 2, 2, 2, 2, 5, 2, 2)), 2.0),
        (10, ((5, 2), (1, 2, 2, 2, 2, 2, 5, 2, 2)), 4.0),  # of the two that end in scope one begins in it
        (10, ((1, 2, 2, 2, 2, 2, 5, 2, 2),), 8.0),
    ],
)
def test_a_breaker_stops_a_repeat_where_all_of_it_is_in_scope(
    scope: int, breakers: tuple[tuple[int, ...], ...], cost: float
) -> None:
    tokens = [1, 2, 2, 2, 2] if scope == 4 else [1, 2, 2, 2, 2, 2, 5, 2, 2, 2, 2]
    rule = Dry(1.0, 2.0, 1, breakers, scope)
    for cut in (0, 3, len(tokens)):
        memory = rule.memory(tokens[:cut])
        for token in tokens[cut:]:
            memory.extend(token, UNMOVED)
        assert said(rule, memory)[2] == -cost
    assert penalized_by_dry(tokens[-scope:], 1.0, 2.0, 1, breakers)[2] == -cost


def test_a_repeat_of_any_length_has_a_finite_penalty() -> None:
    rule = Dry(1e4, 1e4, 1)
    memory = rule.memory([1, 2] * 300)
    assert np.isfinite(memory.amounts).all()
    assert memory.amounts.min() == -np.finfo(np.float32).max
    assert Dry(2.0, 1.0, 2).memory([1, 2] * 300).amounts.tolist() == [-2.0]


@given(st.lists(st.floats(0, 12), max_size=12), st.lists(st.floats(0, 12), max_size=4))
def test_mirostat_learns_its_surprise_and_a_fork_learns_alone(drawn: list[float], other: list[float]) -> None:
    for version, renormalized in ((1, False), (2, False), (2, True)):
        rule = Mirostat(version, tau=3.0, eta=0.2, renormalized=renormalized)
        memory, mu = rule.memory([]), 6.0
        for nats in drawn:
            fork = memory.fork()
            for x in other:
                fork.extend(0, Facts(x, x))
            memory.extend(0, Facts(0.5, nats) if renormalized else Facts(nats, 0.5))
            mu -= 0.2 * (nats / np.log(2) - 3.0)
        (value,) = memory.values
        assert value == pytest.approx(mu if version == 1 else 2 ** -max(mu, 0), abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("eta", [0.0, 10.0])
def test_a_token_of_no_probability_leaves_what_was_learned_a_number(version: int, eta: float) -> None:
    for rule in (Mirostat(version, eta=eta), AdaptiveP(0.5, 0.0)):
        memory = rule.memory([])
        for _ in range(3):
            memory.extend(0, Facts(np.inf, np.inf))
        assert np.isfinite(memory.values).all()
        memory.extend(0, Facts(0.0, 0.0))
        assert np.isfinite(memory.values).all()


@given(st.lists(st.floats(0, 12), max_size=12), st.floats(0, 1), st.floats(0, 0.99))
def test_adaptive_p_aims_beside_what_it_drew(drawn: list[float], target: float, decay: float) -> None:
    memory = AdaptiveP(target, decay).memory([])
    weights = [decay**age for age in range(len(drawn))][::-1]
    first = decay ** len(drawn) / (1 - decay)
    for nats in drawn:
        fork = memory.fork()
        fork.extend(0, Facts(0.0, 0.0))
        memory.extend(0, Facts(nats, 9.0))
    total = sum(w * np.exp(-nats) for w, nats in zip(weights, drawn, strict=True)) + first * target
    aim = min(1.0, max(0.0, 2 * target - total / (sum(weights) + first)))
    (value,) = memory.values
    assert value == pytest.approx(aim, abs=1e-6)


def test_a_callers_own_rule_sees_prompt_and_output() -> None:
    rule = Custom((lambda token_ids, logits: logits,))
    memory = rule.memory([4, 4])
    fork = memory.fork()
    memory.extend(7, UNMOVED)
    fork.extend(8, UNMOVED)
    assert (memory.tokens.tolist(), fork.tokens.tolist()) == ([4, 4, 7], [4, 4, 8])


def test_a_chain_remembers_for_each_rule_and_forks_whole() -> None:
    chain = Chain((RepetitionPenalty(1.2, "all"), Mirostat(2), NoRepeatNgram(2)))
    memory = chain.memory([3])
    assert memory is not None
    fork = memory.fork()
    memory.extend(5, Facts(1.0, 1.0))
    assert memory.memories[0].tokens.tolist() == [3, 5]  # type: ignore[union-attr]
    assert fork.memories[0].tokens.tolist() == [3]  # type: ignore[union-attr]
    assert memory.memories[1].values != fork.memories[1].values  # type: ignore[union-attr]


@given(remembering(), sentences, sentences, sentences)
def test_a_prompt_may_be_taken_in_token_by_token(
    rule_and_definition: tuple[Rule, Callable[[Tokens, Tokens], Amounts]],
    prompt: Tokens,
    more: Tokens,
    output: Tokens,
) -> None:
    rule, definition = rule_and_definition
    grown, whole = rule.memory(prompt), rule.memory(prompt + more)
    assert grown is not None
    assert whole is not None
    for token in more:
        grown.precede(token)
    for i in range(len(output) + 1):
        assert said(rule, grown) == said(rule, whole) == pytest.approx(definition(prompt + more, output[:i]))
        if i < len(output):
            grown.extend(output[i], UNMOVED)
            whole.extend(output[i], UNMOVED)
