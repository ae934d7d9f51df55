"""A stop cuts text, tokens and figures together, wherever tokens and characters are split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.making import SPEC, TOKENIZER, generate, make_engine, scripted, stream
from tests.reference.scripted import ScriptedBackend

TEXT = "ab the été 🙂🙂 in there, abba"


@pytest.mark.parametrize("include_stop", [False, True])
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_stop_cuts_everything_at_its_start(include_stop: bool, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(TEXT) - 1))
    stop = TEXT[start : data.draw(st.integers(start + 1, len(TEXT)))]
    ids = TOKENIZER.encode(TEXT) if data.draw(st.booleans()) else None
    engine = scripted(TEXT) if ids is None else scripted(ids)
    made = generate(engine, [9], temperature=0, stop=stop, include_stop=include_stop, max_tokens=100)
    at = TEXT.index(stop)
    cut = at + len(stop) if include_stop else at
    assert made.text == TEXT[:cut]
    assert (made.finish_reason, made.stop_reason) == ("stop", stop)
    assert made.usage.completion_tokens == len(made.tokens) == len(made.token_ids)
    assert "".join(token.text for token in made.tokens) == made.text
    assert [token.id for token in made.tokens] == made.token_ids
    before = b"".join(TOKENIZER.token_bytes(token) for token in made.token_ids)
    assert before.startswith(TEXT[:cut].encode()[: len(before)])
    without_last = b"".join(TOKENIZER.token_bytes(token) for token in made.token_ids[:-1])
    assert len(without_last.decode(errors="ignore")) < max(cut, 1)


@given(st.lists(st.text(alphabet="abt é🙂", min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_no_piece_of_a_stop_is_ever_streamed(stops: list[str]) -> None:
    whole = generate(scripted(TEXT), [9], temperature=0, stop=stops, max_tokens=100)
    shown = ""
    for chunk in stream(scripted(TEXT), [9], temperature=0, stop=stops, max_tokens=100):
        shown += chunk.text
        assert whole.text.startswith(shown)
        assert "\ufffd" not in chunk.text
    assert shown == whole.text


def test_text_waits_only_while_a_stop_is_possible() -> None:
    chunks = stream(scripted("abcabd!"), [9], temperature=0, stop="abd")
    assert [chunk.text for chunk in chunks] == ["abc", ""]
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", "abd")
    assert [chunk.text for chunk in stream(scripted("ab"), [9], temperature=0, stop="abd")] == ["ab"]


def test_a_character_cut_off_by_max_tokens_is_shown_as_broken() -> None:
    made = generate(scripted("a🙂"), [9], temperature=0, max_tokens=3)
    assert made.text == "a\ufffd"
    assert len(made.token_ids) == 3
    assert "".join(token.text for token in made.tokens) == made.text


def test_a_stop_inside_one_token_drops_the_rest_of_it() -> None:
    ids = [TOKENIZER.ids["a"], TOKENIZER.ids["Ġthe"], TOKENIZER.ids["a"]]
    backend = ScriptedBackend(SPEC, [0, *ids, *[2] * 20])
    made = generate(make_engine(backend), [9], temperature=0, stop="h")
    assert (made.text, made.token_ids) == ("a t", ids[:2])
    assert [token.text for token in made.tokens] == ["a", " t"]
    assert stream(make_engine(backend), [9], temperature=0, stop="h")[-1].tokens == tuple(made.tokens[1:])


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("ended", [True, False])
def test_streamed_tokens_are_whole_wherever_the_stream_ends(count: int, ended: bool) -> None:
    ids = TOKENIZER.encode("ba🙂é!")[:count]
    max_tokens = 100 if ended else len(ids)
    whole = generate(scripted(ids), [9], temperature=0, max_tokens=max_tokens)
    chunks = stream(scripted(ids), [9], temperature=0, max_tokens=max_tokens)
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
    assert "".join(chunk.text for chunk in chunks) == whole.text
