"""Beam searches on an engine give what they give on a table of what its model says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.engine.making import TOKENIZER, generate, stream
from tests.strategy.models import make_native, words
from tests.strategy.texts import Branch, Driver, Tokens, Toy
from tests.strategy.together import plain_rows
from unspool.errors import SearchError
from unspool.strategy import Beam, BeamSample, DiverseBeam

PROMPT = words(37, seed=3)
ROW = plain_rows(PROMPT)
LETTERS = {TOKENIZER.ids[TOKENIZER.characters[byte]]: chr(byte) for byte in b"abcdefghijklm"}
ALLOWED = (2, *LETTERS)
"""What may be drawn: letters, and 2, which ends a text."""
MOST = 12
TABLE: dict[Tokens, dict[int, float]] = {}


@dataclass
class Modelled(Toy):
    """What the native model says after the prompt, of the allowed tokens, up to a stop string."""

    stop_string: str = "?"

    def law(self, tokens: Tokens) -> dict[int, float]:
        if tokens not in self.known:
            row = ROW(list(tokens)).astype(np.float64)[list(ALLOWED)]
            self.known[tokens] = dict(zip(ALLOWED, (row - np.logaddexp.reduce(row)).tolist(), strict=True))
        return self.known[tokens]

    def stopped(self, tokens: Tokens) -> bool:
        said = "".join(LETTERS.get(token, "") for token in tokens)
        return super().stopped(tokens) or self.stop_string in said


def expected(method: Any, n: int, stop: str) -> list[Branch]:
    """What a search of the table gives."""
    toy = Modelled(1000, MOST, frozenset({0, 2}), known=TABLE, stop_string=stop)
    return Driver(toy, method.begin(toy.task(n)._replace(stops=True))).run()


def found(method: Any, n: int, stop: str, blocks: int = 64, **options: Any) -> Any:
    """What the engine gives."""
    return generate(
        make_native(blocks, **options),
        PROMPT,
        strategy=method,
        max_tokens=MOST,
        allowed_token_ids=ALLOWED,
        include_stop=True,
        stop=stop,
        n=n,
        seed=1,
    ).candidates


@pytest.mark.parametrize(
    "method",
    [
        Beam(1),
        Beam(4, 0.7, "never"),
        Beam(5, -1.0),
        Beam(4, early_stopping=True),
        DiverseBeam(6, 3, 0.8),
        Beam(4, 0.5, force_words=[[min(LETTERS), max(LETTERS)], [[min(LETTERS) + 2], [max(LETTERS) - 3]]]),
    ],
)
@pytest.mark.parametrize("stops", [False, True])
def test_an_engine_gives_what_a_table_of_its_model_gives(method: Any, stops: bool) -> None:
    n = min(3, method.width)
    wanted, stop = expected(method, n, "?"), "?"
    if stops:  # a letter within the best text
        stop = next(LETTERS[token] for token in wanted[0].tokens if token in LETTERS)
        wanted = expected(method, n, stop)
    for blocks, step_tokens in ((64, 256), (24, 7)):
        made = found(method, n, stop, blocks, step_tokens=step_tokens)
        assert [c.token_ids for c in made] == [branch.tokens for branch in wanted]
        assert [c.score for c in made] == pytest.approx([branch.score for branch in wanted], abs=1e-4)
        assert [c.total for c in made] == pytest.approx([branch.total for branch in wanted], abs=1e-4)
        assert [c.processed_logprob for c in made] == pytest.approx([b.total for b in wanted], abs=1e-4)
        assert all(c.logprob < c.processed_logprob for c in made)  # the model's own law has more tokens


def test_drawn_beams_are_a_function_of_the_seed() -> None:
    made = [
        [c.token_ids for c in found(BeamSample(4), 4, "?", blocks, step_tokens=step_tokens)]
        for blocks, step_tokens in ((64, 256), (24, 7), (64, 3))
    ]
    assert made.count(made[0]) == len(made)
    assert len(set(map(tuple, made[0]))) == 4


def test_a_search_that_finds_nothing_ends_its_request_with_an_error_that_says_so() -> None:
    engine = make_native()
    with pytest.raises(SearchError, match="force_words"):
        generate(
            engine,
            PROMPT,
            strategy=Beam(3, force_words=[[max(LETTERS) + 1]]),
            allowed_token_ids=ALLOWED,
            max_tokens=5,
        )


def test_a_streamed_beam_shows_what_all_its_beams_agree_on() -> None:
    made = stream(
        make_native(), PROMPT, strategy=Beam(3), max_tokens=MOST, allowed_token_ids=ALLOWED, include_stop=True
    )
    text = "".join(chunk.text for chunk in made if chunk.index == 0)
    assert made[-1].generation is not None
    assert text == made[-1].generation.text
