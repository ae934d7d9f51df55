"""Several tracks and exits as one row: every token is what a plain loop over whole sequences gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import SPEC, WEIGHTS, make_engine, run
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from tests.speculate.proposers import Scripted
from tests.strategy.models import Alone, Recording, ask, candidates, check_empty, finish, native, words
from unspool.backend.base import Float32Array
from unspool.backend.cpu import CpuBackend
from unspool.combine.source import LinearCombination, Source, TrackSpec
from unspool.engine.engine import Engine
from unspool.engine.plans import PlannedRow, plan_of
from unspool.errors import ContextLengthError, ParameterError, RowError, UnspoolError
from unspool.model.tensor import TensorType
from unspool.params import SamplingParams
from unspool.sampling.noise import mix
from unspool.sampling.rules import Facts, NoiseSource
from unspool.sampling.sampler import sample
from unspool.sampling.settings import compile_chain
from unspool.speculate import DraftTree

PROMPT, OTHER = words(37, seed=3), words(5, seed=4)
GUIDED = Source((TrackSpec(PROMPT), TrackSpec(OTHER)), LinearCombination((1.5, -0.5)))
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 5},
    {"seed": 6, "top_p": 0.8, "repetition_penalty": 1.3, "penalty_scope": "all", "n": 3},
]


def combined(alone: Sequence[Alone], source: Source, generated: Sequence[int]) -> Float32Array:
    """The row of a source: each track's whole sequence through its own model, as it is defined."""
    rows = [
        model.rows([*track.prefix, *generated], track.exits or ())
        for model, track in zip(alone, source.tracks, strict=True)
    ]
    return source.combine(np.concatenate(rows))


def plain_loop(
    row: Callable[[list[int]], Float32Array], count: int, params: SamplingParams, index: int = 0
) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities, drawn one at a time by the reference sampler."""
    chain, made = compile_chain(params.rule_settings(())), []
    memory, generated = chain.memory(PROMPT), list[int]()
    for _ in range(count):
        noise = NoiseSource(mix(params.seed or 0, 0), len(PROMPT) + len(generated), index)
        plan = plan_of([PlannedRow(0, chain, 0, len(chain.rules), memory, noise)])
        drawn = sample(row(generated)[None], plan)
        generated.append(int(drawn.tokens[0]))
        if memory is not None:
            facts = Facts(float(drawn.surprises[0]), -float(drawn.processed_logprobs[0]))
            memory.extend(generated[-1], facts)
        made.append((generated[-1], float(drawn.logprobs[0])))
    return made


def check(engine: Engine, alone: Sequence[Alone], source: Source, count: int = 24, **asked: Any) -> None:
    """What an engine makes of a source is what the plain loop makes of it."""
    made = candidates(engine, PROMPT, source=source, max_tokens=count, ignore_eos=True, **asked)
    for candidate in made:
        expected = plain_loop(
            lambda generated: combined(alone, source, generated),
            count,
            SamplingParams(**asked),
            candidate.index,
        )
        assert [token.id for token in candidate.tokens] == [token for token, _ in expected]
        logprobs = [token.logprob for token in candidate.tokens]
        np.testing.assert_allclose(logprobs, [logprob for _, logprob in expected], rtol=0, atol=2e-6)


@pytest.mark.parametrize("asked", SETTINGS)
@pytest.mark.parametrize(("step_tokens", "num_blocks"), [(512, 64), (2, 64), (7, 64), (40, 6), (3, 6)])
def test_guidance_draws_what_a_plain_loop_draws(
    asked: dict[str, Any], step_tokens: int, num_blocks: int
) -> None:
    engine = make_engine(native(), num_blocks, step_tokens=step_tokens)
    check(engine, [Alone(native())] * 2, GUIDED, **asked)


@pytest.mark.parametrize("asked", SETTINGS[:2])
def test_guidance_on_the_reference_model_is_guidance(asked: dict[str, Any]) -> None:
    alone = Alone(ReferenceBackend(SPEC, WEIGHTS))

    def row(generated: list[int]) -> Float32Array:
        with_it, without = alone.row([*PROMPT, *generated]), alone.row([*OTHER, *generated])
        return (np.float32(1.5) * with_it + np.float32(-0.5) * without).astype(np.float32)

    params = SamplingParams(**asked)
    made = candidates(make_engine(), PROMPT, source=GUIDED, max_tokens=8, ignore_eos=True, **asked)
    assert made[0].token_ids == [token for token, _ in plain_loop(row, 8, params)]
    plain = candidates(make_engine(), PROMPT, max_tokens=8, ignore_eos=True, **asked)
    assert made[0].token_ids != plain[0].token_ids  # the second track matters
    if params.temperature == 0:
        greedy: list[int] = []
        for token in made[0].token_ids:
            assert token == int(np.argmax(row(greedy)))
            greedy.append(token)


@given(data=st.data())
@settings(max_examples=25)
def test_guidance_in_any_company_is_guidance_alone(data: st.DataObject) -> None:
    asked = SETTINGS[data.draw(st.integers(0, 2))]
    engine = make_engine(
        native(), data.draw(st.integers(6, 30)), step_tokens=data.draw(st.integers(2, 64)), sharing=True
    )
    others, flights = [], []
    for i in range(data.draw(st.integers(1, 4))):
        priority = data.draw(st.integers(-1, 1))
        if data.draw(st.booleans()):
            others.append(
                (i, ask(engine, words(20 + i), max_tokens=20, seed=i, ignore_eos=True, priority=priority))
            )
        else:
            flights.append(
                ask(
                    engine,
                    PROMPT,
                    source=GUIDED,
                    max_tokens=15,
                    ignore_eos=True,
                    **asked,
                    priority=priority,
                )
            )
        for _ in range(data.draw(st.integers(0, 8))):
            engine.step()
    finish(engine, *flights, *(flight for _, flight in others))
    alone = candidates(make_engine(native()), PROMPT, source=GUIDED, max_tokens=15, ignore_eos=True, **asked)
    for flight in flights:
        assert flight.generation().candidates == alone
    for i, flight in others:
        plain = candidates(make_engine(native()), words(20 + i), max_tokens=20, seed=i, ignore_eos=True)
        assert flight.generation().candidates == plain


@pytest.mark.parametrize("exits", [None, (1, 2, 1)])
def test_a_running_source_gets_its_token_in_every_step(exits: tuple[int, ...] | None) -> None:
    recording = Recording(native(max_step_tokens=8))
    engine = make_engine(recording, 200)
    rows = 2 if exits is None else 4
    source = Source((TrackSpec(PROMPT, exits=exits), TrackSpec(OTHER)), LinearCombination((0.5,) * rows))
    asked: Any = {"source": source, "max_tokens": 20, "ignore_eos": True}
    flights, preemptions = [ask(engine, PROMPT, seed=i, **asked) for i in range(7)], 0
    while engine.busy:
        before = [(b, len(b.token_ids)) for b in engine.scheduler.running if b.pending() == 2]
        engine.step()
        without = [b for b, count in before if len(b.token_ids) != count + 1]
        assert len(without) == engine.stats().preemptions - preemptions
        assert all(not b.running and engine.stats().steps == 21 for b in without)
        preemptions += len(without)
        if engine.stats().steps == 20:  # it comes first, and takes one place
            flights.append(ask(engine, PROMPT, seed=7, priority=1, **asked))
    assert max(max(len(step.tokens), len(step.rows)) for step in recording.steps) <= 8
    assert preemptions == 1
    finish(engine, *flights)


def contrast(rows: Float32Array) -> Float32Array:
    """Twice what the first model finds less what the second does (Li et al. 2023, without the mask)."""
    row: Float32Array = rows[0] * np.float32(2) - rows[1]
    return row


@pytest.mark.parametrize("asked", SETTINGS)
@pytest.mark.parametrize(("blocks", "others"), [(64, 64), (6, 64), (64, 6)])
def test_a_second_model_of_the_same_vocabulary_contrasts(
    asked: dict[str, Any], blocks: int, others: int
) -> None:
    source = Source((TrackSpec(PROMPT), TrackSpec(OTHER, backend="amateur")), contrast)
    engine = make_engine(native(), blocks, others={"amateur": (native(1), others)}, step_tokens=24)
    check(engine, [Alone(native()), Alone(native(1))], source, **asked)


def test_tracks_through_two_models_share_each_models_cache() -> None:
    main, amateur = Recording(), Recording(native(1))
    engine = make_engine(main, others={"amateur": (amateur, 64)})
    source = Source((TrackSpec(PROMPT), TrackSpec(PROMPT, backend="amateur")), contrast)
    flights = [ask(engine, PROMPT, source=source, seed=i, max_tokens=3, ignore_eos=True) for i in range(4)]
    plain = ask(engine, PROMPT, seed=9, max_tokens=3, ignore_eos=True)
    finish(engine, *flights, plain)
    own = len(PROMPT) - 32 + 2
    assert main.computed == 32 + 5 * own
    assert amateur.computed == 32 + 4 * own


def test_several_exits_of_one_track_are_rows_of_their_own() -> None:
    def early(rows: Float32Array) -> Float32Array:
        assert rows.shape == (3, SPEC.vocab_size)
        row: Float32Array = rows[0] - np.float32(0.25) * rows[1] + np.float32(0.1) * rows[2]
        return row

    source = Source((TrackSpec(PROMPT, exits=(2, 1)), TrackSpec(OTHER, exits=(1,))), early)
    for asked in SETTINGS:
        check(make_engine(native(), 12, step_tokens=9), [Alone(native())] * 2, source, **asked)
    single = Source((TrackSpec(PROMPT, exits=(1,)),), lambda rows: rows[0])
    check(make_engine(native()), [Alone(native())], single, seed=2)


class Guess:
    """Guesses a chain of what was said, the last guess wrong."""

    def __init__(self, said: list[int]) -> None:
        self.said = said

    def propose(self, tokens: Sequence[int], most: int) -> DraftTree:
        at = len(tokens) - len(PROMPT)
        return DraftTree.chain([*self.said[at : at + 3], 3])


@pytest.mark.parametrize("asked", SETTINGS)
def test_drafts_run_through_every_track(asked: dict[str, Any]) -> None:
    tracks = (TrackSpec(PROMPT, exits=(1, 2)), TrackSpec(OTHER, backend="amateur"))
    sources = [GUIDED, Source(tracks, LinearCombination((0.2, 1, -0.5)))]
    for source in sources:

        def engine(blocks: int = 64) -> Engine:
            return make_engine(native(), blocks, others={"amateur": (native(1), 64)}, step_tokens=60)

        options: Any = {"source": source, "max_tokens": 24, "ignore_eos": True, **asked}
        without = candidates(engine(), PROMPT, **options)
        for blocks in (64, 6):
            drafted = engine(blocks)
            assert candidates(drafted, PROMPT, proposer=Guess(without[0].token_ids), **options) == without
            assert drafted.stats().steps < 24 * len(without)


class CallerError(Exception):
    """What a caller's own code raises."""


def raising(rows: Float32Array) -> Float32Array:
    raise CallerError("mine")


BAD: list[tuple[Any, type[Exception], str]] = [
    (raising, CallerError, "mine"),
    (lambda rows: rows[0].astype(np.float64), ParameterError, "float64"),
    (lambda rows: rows, ParameterError, r"float32 \[2, 266\]"),
    (lambda rows: rows[0][:-1], ParameterError, r"\[265\]"),
    (lambda rows: None, ParameterError, "NoneType"),
    (lambda rows: rows[0].tolist(), ParameterError, "list"),
    (lambda rows: rows[0] * np.float32(np.nan), RowError, "NaN"),
    (lambda rows: np.full(SPEC.vocab_size, -np.inf, np.float32), RowError, "no token left"),
    (LinearCombination((1.0,)), ParameterError, "1 weights cannot combine 2 rows"),
]


@pytest.mark.parametrize(("combine", "error", "match"), BAD)
def test_a_combine_that_fails_ends_its_own_request_alone(
    combine: Any, error: type[Exception], match: str
) -> None:
    engine = make_engine(native(), 20)
    tracks = GUIDED.tracks
    calls = 0

    def third(rows: Float32Array) -> Any:
        nonlocal calls
        calls += 1
        return combine(rows) if calls >= 3 else GUIDED.combine(rows)

    good: Any = {"max_tokens": 12, "ignore_eos": True, "seed": 1}
    before = ask(engine, words(20), **good)
    bad = ask(engine, PROMPT, source=Source(tracks, third), **good, n=2)
    after = ask(engine, PROMPT, source=GUIDED, **good)
    finish(engine, before, bad, after)
    with pytest.raises(error, match=match):
        bad.generation()
    assert before.generation().candidates == candidates(make_engine(native()), words(20), **good)
    assert after.generation().candidates == candidates(make_engine(native()), PROMPT, source=GUIDED, **good)


def test_a_source_that_cannot_run_is_refused() -> None:
    small = tiny_spec(vocab_size=100, context_length=128)
    other = CpuBackend(small, make_tensors(random_weights(small), TensorType.F32), threads=1)
    engine = make_engine(native(), 8, others={"other": (other, 8), "short": (native(1), 2)}, step_tokens=4)

    def refused(tracks: Sequence[TrackSpec], match: str, error: type[UnspoolError] = ParameterError) -> None:
        with pytest.raises(error, match=match):
            engine.prepare(
                PROMPT, SamplingParams(max_tokens=10), source=Source(tuple(tracks), GUIDED.combine)
            )

    main = TrackSpec(PROMPT)
    refused([], "4 rows or fewer, not 0 tracks")
    refused([main] * 5, "4 rows or fewer, not 5 tracks")
    refused([main, TrackSpec(OTHER, exits=())], "each with one exit or more")
    refused([main, TrackSpec(OTHER, exits=(1, 2, 1, 2))], "4 rows or fewer")
    refused([main, TrackSpec(OTHER, backend="expert")], r"no backend 'expert'; there is main, other, short")
    refused([main, TrackSpec(OTHER, backend="other")], "100 tokens, the model's 266")
    refused([main, TrackSpec([])], "empty")
    refused([main, TrackSpec([1, 266])], r"token id 266 \(at 1\)")
    refused([main, TrackSpec(words(125))], "at most 3 do", ContextLengthError)
    short = TrackSpec(words(25), backend="short")
    refused([main, short], "cache of 32 tokens.* at most 7", ContextLengthError)
    refused([main, TrackSpec(OTHER, exits=(0,))], "1 to 2 layers, not 0")
    refused([main, TrackSpec(OTHER, exits=(1, 3))], "1 to 2 layers, not 3")
    refused([TrackSpec(OTHER), main], "first track's prefix must be the prompt")
    check_empty(engine)


@pytest.mark.parametrize("num_blocks", [6, 7, 8])
def test_two_tracks_that_cannot_fit_together_are_refused_or_end_with_an_error(num_blocks: int) -> None:
    """Two tracks of one backend share its pool: what fits alone need not fit beside the other."""
    engine = make_engine(native(), num_blocks)
    source = Source((TrackSpec(PROMPT), TrackSpec(words(40))), GUIDED.combine)
    fits = num_blocks >= 2 * 4  # 37 + 20 and 40 + 20 tokens
    try:
        bad = ask(engine, PROMPT, source=source, max_tokens=20, ignore_eos=True, seed=1)
    except ContextLengthError:
        assert not fits
        return
    plain = ask(engine, words(20), max_tokens=5, ignore_eos=True, seed=1)
    run(engine, [bad, plain])
    check_empty(engine)
    assert isinstance(bad.error, ContextLengthError) != fits
    assert plain.error is None


@pytest.mark.parametrize(
    "change", [list.clear, lambda ids: ids.append(11), lambda ids: ids.extend([10**6] * 999)]
)
def test_what_becomes_of_a_callers_lists_is_nothing_to_its_request(
    change: Callable[[list[int]], None],
) -> None:
    asked: Any = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
    engine = make_engine(native())
    prompt, other, exits = list(PROMPT), list(OTHER), [1, 2]
    tracks = [TrackSpec(prompt, exits=exits), TrackSpec(other)]  # type: ignore[arg-type]
    source = Source(tracks, LinearCombination((0.5, 1.0, -0.5)))  # type: ignore[arg-type]
    flight = ask(engine, prompt, source=source, **asked)
    for ids in (prompt, other, exits):
        change(ids)
    tracks.clear()
    plain = ask(engine, OTHER, **asked)
    finish(engine, flight, plain)
    steady = Source((TrackSpec(PROMPT, exits=(1, 2)), TrackSpec(OTHER)), source.combine)
    assert flight.generation().candidates == candidates(make_engine(native()), PROMPT, source=steady, **asked)


def test_a_combination_may_give_the_same_array_each_time() -> None:
    """With a draft, several rows are combined before one is drawn from."""
    asked: Any = {"max_tokens": 30, "ignore_eos": True, "temperature": 0}
    array = np.zeros(SPEC.vocab_size, np.float32)

    def combine(rows: Float32Array) -> Float32Array:
        array[:] = GUIDED.combine(rows)
        return array

    guess = Scripted(lambda tokens, most: DraftTree.chain([tokens[-1], tokens[-1], tokens[-2]]))
    expected = candidates(make_engine(native()), PROMPT, source=GUIDED, **asked)
    for proposer in (None, guess):
        source = Source(GUIDED.tracks, combine)
        made = candidates(make_engine(native()), PROMPT, source=source, proposer=proposer, **asked)
        assert made == expected
