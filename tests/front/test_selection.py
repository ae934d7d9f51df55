"""Selections from an LLM on: what they choose is chosen from the very samples that n would give."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from unspool import LLM, MBR, AsyncLLM, Beam, BestOf, ParameterError, SamplingParams, Vote
from unspool.results import Candidate, Chunk, Generation

PROMPT = "the inner other"
N = 12


def asked(llm: LLM, **more: Any) -> dict[str, Any]:
    """Settings for texts of a few letters, which end at different lengths."""
    letters = llm.tokenizer.encode("abc")
    return {
        "max_tokens": 24,
        "allowed_token_ids": [2, *letters],
        "seed": 2,
        "temperature": 2.0,
        "top_k": 4,
        **more,
    }


def last(text: str) -> str | None:
    return text[-1:] or None


def samples(llm: LLM, **more: Any) -> list[Candidate]:
    made: list[Candidate] = llm.generate(PROMPT, n=N, **asked(llm, **more)).candidates
    return made


def check_from(made: Generation, pool: list[Candidate]) -> None:
    """The results are samples of the same seed, in the order that the choice says."""
    assert made.choice is not None
    assert made.candidates == [pool[at] for at in made.choice.order]
    assert made.text == pool[made.choice.best].text


VOTES = [Vote(N, last), Vote(N, r"[ab]"), Vote(N, lambda text: len(text) > 5)]


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("seed", range(4))
def test_a_vote_is_the_majority_of_all_samples_and_looks_at_no_more_than_it_must(
    llm: LLM, vote: Vote, seed: int
) -> None:
    pool = samples(llm, seed=seed)
    made = llm.generate(PROMPT, select=vote, **asked(llm, seed=seed))
    check_from(made, pool)
    assert made.choice is not None
    count = Counter(answer for c in pool if (answer := vote.answer(c.text)) is not None)
    assert count[made.choice.answer] == max(count.values())
    assert vote.answer(made.text) == made.choice.answer
    assert made.choice.considered == (vote.begin().settled(pool) or N)
    for tally in made.choice.tally:
        voters = [c for c in pool[: made.choice.considered] if vote.answer(c.text) == tally.answer]
        assert tally.votes == len(voters)
        means = [c.mean_logprob if c.tokens else -math.inf for c in voters]
        assert tally.mean_logprob == pytest.approx(sum(means) / len(voters))


def test_a_vote_ends_early_and_never_depends_on_what_finishes_first(llm: LLM, tiny_path: Path) -> None:
    """Whichever samples run first, wait, or are preempted: the same are counted (and the others end)."""
    vote, early = VOTES[2], 0
    for seed in range(6):
        expected = llm.generate(PROMPT, select=vote, **asked(llm, seed=seed))
        assert expected.choice is not None
        early += expected.choice.considered < N
        for step_tokens, cache_tokens in ((2, 512), (5, 96), (512, 64), (3, 48)):
            with LLM(tiny_path, threads=1, step_tokens=step_tokens, cache_tokens=cache_tokens) as other:
                made = other.generate(PROMPT, select=vote, **asked(llm, seed=seed))
                assert made.candidates == expected.candidates
                assert made.choice == expected.choice
    assert early > 2


def test_samples_that_cannot_change_a_vote_are_not_gone_on_with(llm: LLM) -> None:
    """All give one answer, so that 7 of 12 decide: what is left of the others is not computed."""
    spent = [0, 0]
    for seed in range(5):
        own = asked(llm, ignore_eos=True, stop=["aba"], max_tokens=60, seed=seed)
        for at, more in enumerate(({"select": Vote(N, lambda text: "same")}, {"n": N})):
            before = llm.stats().generated_tokens
            made = llm.generate(PROMPT, **own, **more)  # type: ignore[arg-type]
            spent[at] += llm.stats().generated_tokens - before
            assert made.choice is None or made.choice.considered == N // 2 + 1
    assert spent[0] < spent[1]


@pytest.mark.parametrize("score", ["sum_logprob", "mean_logprob", "min_logprob", lambda c: -len(c.text)])
def test_best_of_ranks_the_samples_by_their_score(llm: LLM, score: Any) -> None:
    pool = samples(llm)
    made = llm.generate(PROMPT, select=BestOf(N, score), **asked(llm))
    check_from(made, pool)
    plain = {
        "sum_logprob": lambda c: sum(t.logprob for t in c.tokens),
        "mean_logprob": lambda c: sum(t.logprob for t in c.tokens) / len(c.tokens),
        "min_logprob": lambda c: min(t.logprob for t in c.tokens),
    }.get(score, score)
    values = [plain(c) if c.tokens or callable(score) else -math.inf for c in pool]
    assert made.choice is not None
    assert list(made.choice.scores) == pytest.approx(values)
    assert list(made.choice.order) == sorted(range(N), key=lambda at: -made.choice.scores[at])


def overlap(hypothesis: str, reference: str) -> float:
    """No symmetric one."""
    return len(set(hypothesis) & set(reference)) / (1 + len(hypothesis))


def test_minimum_bayes_risk_ranks_the_samples_by_their_mean_utility(llm: LLM) -> None:
    pool = samples(llm)
    made = llm.generate(PROMPT, select=MBR(N, overlap), **asked(llm))
    check_from(made, pool)
    expected = [sum(overlap(c.text, other.text) for other in pool) / N for c in pool]
    assert made.choice is not None
    assert list(made.choice.scores) == pytest.approx(expected)
    assert made.choice.best == max(range(N), key=lambda at: (expected[at], -at))


SELECTIONS: list[Any] = [
    Vote(N, last),
    BestOf(N),
    BestOf(N, lambda c: -len(c.text)),
    MBR(N, "rouge-l"),
    MBR(N, overlap),
]


def check_stream(chunks: list[Chunk], expected: Generation) -> None:
    """Joined, the chunks are the chosen text, which the last of them has whole."""
    made = chunks[-1].generation
    assert made is not None
    assert made.candidates == expected.candidates
    assert made.choice == expected.choice
    assert all(chunk.index == 0 and chunk.generation is None for chunk in chunks[:-1])
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert [token for chunk in chunks for token in chunk.tokens] == expected.tokens
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [expected.finish_reason]


@pytest.mark.parametrize("select", SELECTIONS)
def test_a_streamed_selection_gives_the_chosen_text_and_takes_nothing_back(
    llm: LLM, tiny_path: Path, select: Any
) -> None:
    for more in ({}, {"stop": ["ab"]}, {"top_k": 1}):
        own = asked(llm, select=select, **more)
        check_stream(list(llm.stream(PROMPT, **own)), llm.generate(PROMPT, **own))

    async def read(shared: AsyncLLM, seed: int) -> list[Chunk]:
        return [chunk async for chunk in shared.generate(PROMPT, **asked(llm, select=select, seed=seed))]

    async def together() -> list[list[Chunk]]:
        async with AsyncLLM(tiny_path, threads=1, chunk_seconds=0) as shared:
            return await asyncio.gather(*(read(shared, seed) for seed in range(3)))

    for seed, chunks in enumerate(asyncio.run(together())):
        check_stream(chunks, llm.generate(PROMPT, **asked(llm, select=select, seed=seed)))


def test_a_selection_among_the_beams_of_a_search(llm: LLM) -> None:
    own = asked(llm, temperature=1.0, max_tokens=8)
    beams = llm.generate(PROMPT, strategy=Beam(N), n=N, **own).candidates
    for select in SELECTIONS:
        made = llm.generate(PROMPT, strategy=Beam(N), select=select, **own)
        assert made.choice is not None
        assert [c.token_ids for c in made.candidates] == [beams[at].token_ids for at in made.choice.order]
        check_stream(list(llm.stream(PROMPT, strategy=Beam(N), select=select, **own)), made)


@pytest.mark.parametrize("select", SELECTIONS)
def test_n_beside_a_selection_is_refused(llm: LLM, select: Any) -> None:
    with pytest.raises(ParameterError, match="n=3 and select="):
        llm.generate(PROMPT, select=select, n=3)


def wrong(*_: object) -> Any:
    raise KeyError("not here")


RAISING = [Vote(N, wrong), BestOf(N, wrong), MBR(N, wrong)]


@pytest.mark.parametrize("select", RAISING)
def test_a_function_that_raises_ends_its_own_request_alone(llm: LLM, tiny_path: Path, select: Any) -> None:
    own = asked(llm)
    good = llm.generate(PROMPT, **own)
    for _ in range(2):  # nothing is left of it
        made = llm.generate(
            [PROMPT] * 3,
            [SamplingParams(**own), SamplingParams(**own, select=select), SamplingParams(**own)],
            return_exceptions=True,
        )
        assert isinstance(made[1], ParameterError)
        assert "KeyError" in str(made[1])
        for at in (0, 2):
            beside = made[at]
            assert isinstance(beside, Generation)
            assert beside.candidates == good.candidates
        with pytest.raises(ParameterError, match="KeyError"):
            llm.generate(PROMPT, select=select, **own)
        with pytest.raises(ParameterError, match="KeyError"):
            list(llm.stream(PROMPT, select=select, **own))
    assert llm.stats().requests == 0

    async def read(shared: AsyncLLM, **more: Any) -> list[Chunk]:
        return [chunk async for chunk in shared.generate(PROMPT, **own, **more)]

    async def together() -> list[Any]:
        async with AsyncLLM(tiny_path, threads=1) as shared:
            ways: list[dict[str, Any]] = [{}, {"select": select}, {}]
            return list(await asyncio.gather(*(read(shared, **way) for way in ways), return_exceptions=True))

    first, failed, second = asyncio.run(together())
    assert isinstance(failed, ParameterError)
    for chunks in (first, second):
        assert chunks[-1].generation.candidates == good.candidates
