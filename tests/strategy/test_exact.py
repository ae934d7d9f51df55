"""Exact search: the best texts of all, and no more rows than it may look at."""

from __future__ import annotations

import math

import pytest

from tests.engine.making import generate, make_engine, stream
from tests.strategy.enumerated import ASKED, PROMPT, ask, best_texts, said, texts
from tests.strategy.models import native
from unspool.errors import ParameterError, UnspoolError
from unspool.strategy import Exact


def test_the_enumeration_is_of_everything() -> None:
    assert math.isclose(sum(map(math.exp, texts().values())), 1.0)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_it_finds_the_most_probable_texts_of_all(n: int) -> None:
    candidates = ask(strategy=Exact(), n=n)
    assert said(candidates) == best_texts(n)
    for candidate in candidates:
        assert candidate.total == candidate.score
        assert candidate.total == pytest.approx(texts()[tuple(candidate.token_ids)], abs=1e-4)
        assert candidate.processed_logprob == pytest.approx(candidate.total, abs=1e-4)


def test_figures_are_those_that_sampling_reports() -> None:
    [found] = ask(strategy=Exact(), n=1, logprobs=2)
    engine = make_engine(native())
    for at, token in enumerate(found.tokens):
        before = [*PROMPT, *found.token_ids[:at]]
        again = generate(
            engine, before, allowed_token_ids=[token.id], max_tokens=1, logprobs=2, include_stop=True
        ).tokens[0]
        assert (again.id, again.rank, again.entropy) == (token.id, token.rank, token.entropy)
        assert again.logprob == pytest.approx(token.logprob, abs=1e-6)
        assert again.top_logprobs[0].id == token.top_logprobs[0].id


def test_a_stop_string_ends_a_text_and_min_tokens_bar_the_end() -> None:
    first = best_texts(1)[0]
    engine = make_engine(native())
    piece = generate(engine, list(PROMPT), strategy=Exact(), **ASKED).text[:1]
    stopped = generate(engine, list(PROMPT), strategy=Exact(), stop=[piece], **ASKED)
    assert first[0] != 2
    assert stopped.stop_reason in (piece, 2)
    longest = ask(strategy=Exact(), min_tokens=3)
    assert said(longest)[0] == max(
        (text for text in texts() if 2 not in text[:-1] and len(text) == 3 and text[-1] != 2),
        key=score_without_end,
    )


def score_without_end(text: tuple[int, ...]) -> float:
    from tests.strategy.enumerated import law_after

    total = 0.0
    for at, token in enumerate(text):
        law = law_after(text[:at])
        total += law[token] - math.log(sum(math.exp(s) for t, s in law.items() if t != 2))
    return total


def test_a_stream_shows_the_same_text() -> None:
    whole = ask(strategy=Exact())[0]
    chunks = stream(make_engine(native()), list(PROMPT), strategy=Exact(), **ASKED)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token.id for chunk in chunks for token in chunk.tokens] == whole.token_ids


def test_beyond_its_rows_it_ends_with_an_error_and_nothing_else_is_harmed() -> None:
    engine = make_engine(native())
    with pytest.raises(UnspoolError, match="looked at 1 rows"):
        generate(engine, list(PROMPT), strategy=Exact(rows=1), **ASKED)
    assert engine.main.pool.num_free == engine.main.pool.num_blocks


@pytest.mark.parametrize("settings", [{"order": "transformers"}, {"mirostat": 2}])
def test_what_has_no_bound_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match="exact search"):
        ask(strategy=Exact(), **settings)
