"""Branches that grow together: forks, provisional tokens, drafts, preemption, and what does not fit."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import SPEC, make_engine
from tests.reference.scripted import ScriptedBackend
from tests.speculate.proposers import Scripted, hidden_in_a_tree
from tests.strategy.models import (
    Recording,
    ask,
    candidates,
    finish,
    make_native,
    native,
    words,
)
from tests.strategy.together import Beam, Hypothesis, Lanes, enumerate_beam, plain_rows
from unspool.cache import blocks_for_tokens
from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.errors import ContextLengthError, RowError
from unspool.speculate import DraftTree
from unspool.strategy import Branches, RowResult, Sample, Strategy

PROMPT = words(37, seed=3)
ROW = plain_rows(PROMPT)
ASKED: dict[str, Any] = {"logprobs": 3, "ignore_eos": True, "seed": 1}


def beam(engine: Engine, strategy: Beam, prompt: Sequence[int] = PROMPT, **options: Any) -> Flight:
    return ask(engine, prompt, strategy=strategy, max_tokens=strategy.length, **{**ASKED, **options})


def hypotheses(flight: Flight) -> list[Hypothesis]:
    """What a beam gave, best first."""
    strategy = flight.request.strategy
    assert isinstance(strategy, Beam)
    made = [tuple(candidate.token_ids) for candidate in flight.generation().candidates]
    assert sorted(made) == sorted(strategy.tokens.values())
    return sorted(
        ((strategy.tokens[b], total) for b, total in strategy.sums.items()), key=lambda h: (-h[1], h[0])
    )


def test_forks_are_numbered_alike_whichever_row_comes_first() -> None:
    """A fork draws with its number, which must not tell of the steps in which others were computed."""
    made = []
    for step_tokens, blocks in ((512, 64), (2, 64), (1, 64), (12, 13)):
        engine = make_native(blocks, step_tokens=step_tokens)
        flight = beam(engine, Beam(4, 16, per_row=3))
        finish(engine, flight)
        made.append({c.index: c.token_ids for c in flight.generation().candidates})
    assert made.count(made[0]) == len(made)


@pytest.mark.parametrize(("beams", "per_row", "length"), [(2, 2, 20), (1, 1, 9), (3, 2, 12), (6, 3, 8)])
@pytest.mark.parametrize("step_tokens", [512, 5, 2])
def test_a_beam_gives_what_enumeration_gives(beams: int, per_row: int, length: int, step_tokens: int) -> None:
    engine = make_native(step_tokens=step_tokens)
    flight = beam(engine, Beam(beams, length, per_row))
    finish(engine, flight)
    assert hypotheses(flight) == enumerate_beam(ROW, beams, length, per_row)
    assert len({c.index for c in flight.generation().candidates}) == beams


def guessing(beams: list[Hypothesis], kind: str) -> Scripted:
    """Knows the end of a beam search and guesses on the way to it, or beside it."""

    def propose(tokens: Sequence[int], most: int) -> DraftTree | None:
        at = len(tokens) - len(PROMPT)
        generated = tuple(tokens[len(PROMPT) :])
        ways = [way[at : at + 5] for way, _ in beams if way[:at] == generated]
        rng = np.random.default_rng(len(generated))
        if kind == "wrong" or not ways:
            return DraftTree.chain([3, 4, 5])
        if kind == "chain":
            return DraftTree.chain(ways[0])
        return hidden_in_a_tree(ways[-1], rng)

    return Scripted(propose)


@pytest.mark.parametrize("kind", ["wrong", "chain", "tree"])
@pytest.mark.parametrize("blocks", [64, 8])
@pytest.mark.parametrize("step_tokens", [512, 12])
def test_guesses_change_nothing_of_a_beam(kind: str, blocks: int, step_tokens: int) -> None:
    expected = enumerate_beam(ROW, 2, 24)
    engine = make_native(blocks, step_tokens=step_tokens)
    flight = beam(engine, Beam(2, 24), proposer=guessing(expected, kind))
    finish(engine, flight)
    assert hypotheses(flight) == expected


class Greedy:
    """Guesses all the ways that a beam could go on from here, two tokens deep."""

    def propose(self, tokens: Sequence[int], most: int) -> DraftTree:
        generated = list(tokens[len(PROMPT) :])
        made: list[int] = []
        parents: list[int] = []
        level = [(-1, generated)]
        for _ in range(2):
            below = []
            for parent, said in level:
                for token in np.argsort(-ROW(said), kind="stable")[:2].tolist():
                    made.append(token)
                    parents.append(parent)
                    below.append((len(made) - 1, [*said, token]))
            level = below
        return DraftTree(made, parents)


def test_a_beam_grows_again_within_a_step_where_every_branch_was_guessed() -> None:
    recording = Recording()
    engine = make_engine(recording)
    strategy = Beam(2, 24)
    flight = beam(engine, strategy, proposer=Greedy())
    finish(engine, flight)
    assert hypotheses(flight) == enumerate_beam(ROW, 2, 24)
    assert strategy.grown == 24
    assert len(recording.steps) < 18  # 24 without: a twin's next step finds its row, but no guess of it


def test_a_fork_of_a_fork_within_a_step_computes_only_what_it_must() -> None:
    """A twin computes what it followed of the draft again, and not what lies before it."""
    recording = Recording()
    engine = make_engine(recording, sharing=False)
    flight = beam(engine, Beam(4, 12), proposer=Greedy())
    finish(engine, flight)
    assert hypotheses(flight) == enumerate_beam(ROW, 4, 12)
    largest = max(int(np.diff(step.run_starts).max()) for step in recording.steps[1:])
    assert largest <= 1 + 6  # a token, and what was guessed after it


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("blocks", [7, 8, 9, 12])
def test_a_preempted_beam_goes_on_as_if_nothing_had_been(blocks: int, sharing: bool, drafting: bool) -> None:
    """37 + 24 tokens are 4 blocks; two hypotheses that part in the third, and each copies it, need 6."""
    engine = make_native(blocks, sharing=sharing)
    flight = beam(engine, Beam(2, 24), proposer=Greedy() if drafting else None)
    engine.drive(lambda: bool(flight.branches) and len(flight.branches[0].token_ids) > 8)
    urgent: Any = {"seed": 2, "max_tokens": 40, "ignore_eos": True}
    other = ask(engine, words(30, seed=8), priority=1, **urgent)
    finish(engine, flight, other)
    assert other.generation().candidates == candidates(make_native(), words(30, seed=8), **urgent)
    assert hypotheses(flight) == enumerate_beam(ROW, 2, 24)
    if blocks == 7:
        assert flight.preemptions > 0


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("width", [3, 6])
def test_branches_that_just_fit_fit_after_a_preemption_too(width: int, sharing: bool) -> None:
    prompt, length = words(40, seed=5), 20
    blocks = 2 + width * (blocks_for_tokens(len(prompt) + length) - 2)
    asked: Any = {"max_tokens": length, "ignore_eos": True, "seed": 1}
    expected = candidates(make_native(), prompt, n=width, **asked)
    engine = make_engine(native(), blocks, sharing=sharing)
    flight = ask(engine, prompt, strategy=Lanes(width, length), **asked)
    engine.drive(lambda: bool(flight.branches) and len(flight.branches[-1].token_ids) == length - 4)
    other = ask(engine, words(60, seed=8), priority=1, max_tokens=4)
    finish(engine, flight, other)
    assert other.error is None
    assert flight.preemptions > 0
    assert [c.token_ids for c in flight.generation().candidates] == [c.token_ids for c in expected]


@pytest.mark.parametrize("blocks", [4, 5])
def test_what_does_not_fit_together_ends_with_an_error_and_the_engine_goes_on(blocks: int) -> None:
    engine = make_native(blocks)
    asked: Any = {"seed": 2, "max_tokens": 12, "ignore_eos": True}
    before = ask(engine, words(20), **asked)
    flight = beam(engine, Beam(5, 24, per_row=3))
    after = ask(engine, words(20, seed=1), **asked)
    finish(engine, before, flight, after)
    with pytest.raises(
        ContextLengthError, match=rf"do not fit in the cache of {blocks * 16} tokens together"
    ):
        flight.generation()
    for i, other in enumerate((before, after)):
        assert other.generation().candidates == candidates(make_native(), words(20, seed=i), **asked)


@given(data=st.data())
@settings(max_examples=25)
def test_a_beam_in_any_company_is_a_beam_alone(data: st.DataObject) -> None:
    engine = make_engine(
        native(),
        data.draw(st.integers(9, 24)),
        step_tokens=data.draw(st.integers(1, 40)),
        sharing=data.draw(st.booleans()),
    )
    flights: list[tuple[Flight, Any]] = []
    for i in range(data.draw(st.integers(2, 4))):
        priority = data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):
            proposer = data.draw(
                st.sampled_from([None, Greedy(), Scripted(lambda *_: DraftTree.chain([5, 6]))])
            )
            flights.append((beam(engine, Beam(2, 16), priority=priority, proposer=proposer), None))
        else:
            asked: Any = {"seed": i, "max_tokens": 20, "ignore_eos": True, "n": 1 + i % 2}
            flights.append((ask(engine, words(20, seed=i), priority=priority, **asked), (i, asked)))
        for _ in range(data.draw(st.integers(0, 10))):
            engine.step()
    finish(engine, *(flight for flight, _ in flights))
    for flight, plain in flights:
        if plain is None:
            assert hypotheses(flight) == enumerate_beam(ROW, 2, 16)
        else:
            alone = candidates(make_native(), words(20, seed=plain[0]), **plain[1])
            assert flight.generation().candidates == alone


def test_provisional_tokens_are_neither_streamed_nor_matched_nor_shared() -> None:
    engine = make_native()
    asked: Any = {"stop": list(string.printable), "max_tokens": 50, "seed": 1, "ignore_eos": True}
    flight = ask(engine, PROMPT, strategy=Lanes(2, 50), streaming=True, **asked)
    while not flight.done:
        assert not flight.outbox
        assert len(engine.main.prefixes) <= len(PROMPT) // 16
        assert all(branch.growing for branch in flight.branches)
        engine.step()
    made = flight.generation().candidates
    # Committed at the end, each is stopped where it would have been stopped on the way.
    assert made == candidates(make_native(), PROMPT, n=2, **asked)
    assert [t for chunk in flight.outbox if chunk.index == 1 for t in chunk.tokens] == made[1].tokens
    finish(engine)


@pytest.mark.parametrize("every", [1, 3, 16])
@pytest.mark.parametrize("drafting", [False, True])
def test_committing_now_and_then_gives_the_same(every: int, drafting: bool) -> None:
    asked: Any = {"max_tokens": 40, "ignore_eos": True, "seed": 1}
    alone = candidates(make_native(), PROMPT, n=3, **asked)

    def propose(tokens: Sequence[int], most: int) -> DraftTree | None:
        at = len(tokens) - len(PROMPT)
        said = [c.token_ids for c in alone if c.token_ids[:at] == list(tokens[len(PROMPT) :])]
        return DraftTree.chain(said[0][at : at + 3]) if said and at % 5 else DraftTree.chain([4])

    for blocks in (64, 13):
        engine = make_native(blocks)
        flight = ask(
            engine,
            PROMPT,
            strategy=Lanes(3, 40, every),
            proposer=Scripted(propose) if drafting else None,
            streaming=True,
            **asked,
        )
        finish(engine, flight)
        assert flight.generation().candidates == alone
        for candidate in alone:
            mine = [chunk for chunk in flight.outbox if chunk.index == candidate.index]
            assert [token for chunk in mine for token in chunk.tokens] == candidate.tokens


def test_a_guessed_row_without_a_law_keeps_branches_together() -> None:
    """One branch's guess leads to a row of NaN, the other's not: neither goes on without the other."""

    class Parting(ScriptedBackend):
        """After token 7 anywhere beyond the prompt, NaN."""

        def forward(self, step: Any) -> Any:
            output = super().forward(step)
            rows = output.logits.numpy()
            for r, t in enumerate(step.rows):
                if step.tokens[t] == 7:
                    rows[r, 0] = np.nan
            return output

    class Two(Strategy):
        """Two branches; the second takes token 7 at its third place."""

        width, together = 2, True
        seen: list[int] = []  # noqa: RUF012

        def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
            self.seen.append(len(frontier))
            for branch, token, figures, *_ in frontier:
                third = branch.index == 1 and len(branch.token_ids) == 2
                branches.append(branch, 7 if third else token, figures)

    strategy = Two()
    engine = make_engine(Parting(SPEC, [9] * 40))
    draft = Scripted(lambda tokens, most: DraftTree([9, 7, 9, 7, 9], [-1, -1, 0, 0, 2]))
    flight = ask(engine, [9], strategy=strategy, proposer=draft, max_tokens=20, temperature=0)
    finish(engine, flight)
    assert isinstance(flight.error, RowError)
    assert set(strategy.seen) == {2}


class Rejecting(Sample):
    """Drops its first sample at once, as a best-of that gives up early would."""

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        for row in frontier:
            if row.branch.index == 0:
                branches.drop(row.branch)
        super().grow([row for row in frontier if row.branch.index], branches)


def test_a_strategy_may_drop_the_branch_that_went_ahead() -> None:
    asked: Any = {"max_tokens": 10, "ignore_eos": True, "seed": 1}
    alone = candidates(make_native(), PROMPT, n=3, **asked)
    assert candidates(make_native(), PROMPT, strategy=Rejecting(3), **asked) == alone[1:]


class Branching(Strategy):
    """Each branch takes its tokens as they come, and forks once on the way."""

    width, together = 1, False

    def grow(self, frontier: Sequence[RowResult], branches: Branches) -> None:
        for branch, token, figures, *_ in frontier:
            twin = branches.fork(branch) if len(branch.token_ids) == 4 and branch.index == 0 else None
            branches.append(branch, token, figures)
            branches.commit(branch)
            if twin is not None:
                branches.append(twin, figures.best[1][0], figures)
                branches.commit(twin)


def test_branches_that_do_not_grow_together_may_fork_too() -> None:
    asked: Any = {"max_tokens": 10, "ignore_eos": True, "temperature": 0, "logprobs": 2}
    first, second = candidates(make_native(), PROMPT, strategy=Branching(), **asked)
    assert first.token_ids == candidates(make_native(), PROMPT, **asked)[0].token_ids
    head = second.token_ids[:5]
    assert head[:4] == first.token_ids[:4]
    assert head[4] != first.token_ids[4]
    rest = candidates(make_native(), [*PROMPT, *head], **{**asked, "max_tokens": 5})
    assert second.token_ids[5:] == rest[0].token_ids
