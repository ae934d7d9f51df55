"""Text comes out as it would all at once, wherever the tokens cut it."""

from __future__ import annotations

from itertools import accumulate
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from unspool.model.detokenizer import IncrementalDetokenizer
from unspool.model.tokenizer import Tokenizer

SPECIAL = 1000
TEXTS = ["plain", "é", "€uro", "😀 and 👨‍👩‍👧", "e\u0301", "你好 wörld", "  two  spaces  ", "\ufffd", "𝔘"]


class Pieces:
    """A vocabulary of chosen byte strings; the id ``SPECIAL`` is a special token."""

    special_ids = frozenset({SPECIAL})

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return b"<s>" if token == SPECIAL else self.pieces[token]


def detokenizer(pieces: list[bytes], skip_special: bool = True) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(cast(Tokenizer, Pieces(pieces)), skip_special)


def check(pieces: list[bytes]) -> None:
    """The joined output is the decoded whole; it never has to be taken back."""
    detok, text = detokenizer(pieces), ""
    whole = b"".join(pieces).decode("utf-8", "replace")
    for token in range(len(pieces)):
        before = len(text)
        text += detok.push(token)
        assert whole.startswith(text)
        assert detok.length == len(text)
        assert detok.starts[token] >= before
    text += detok.flush()
    assert text == whole
    assert detok.starts == sorted(detok.starts)
    expected = expected_starts(pieces)
    assert all(want in (None, start) for start, want in zip(detok.starts, expected, strict=True))


def expected_starts(pieces: list[bytes]) -> list[int | None]:
    """For each piece, the character that its first byte belongs to; None for an empty piece."""
    data = b"".join(pieces)
    owner: list[int] = []  # of each byte
    while len(owner) < len(data):
        # The longest stretch that decodes to one character is that character's bytes.
        stretches = (data[len(owner) : len(owner) + size] for size in (4, 3, 2, 1))
        stretch = next(s for s in stretches if len(s.decode("utf-8", "replace")) == 1)
        owner += [owner[-1] + 1 if owner else 0] * len(stretch)
    offsets = accumulate((len(piece) for piece in pieces), initial=0)
    return [owner[offset] if piece else None for offset, piece in zip(offsets, pieces, strict=False)]


def test_every_character_split_at_every_byte_boundary() -> None:
    for text in TEXTS:
        data = text.encode()
        check([bytes([byte]) for byte in data])
        for cut in range(len(data) + 1):
            check([data[:cut], data[cut:]])
            for second in range(cut, len(data) + 1):
                check([data[:cut], data[cut:second], data[second:]])


def test_no_piece_of_a_valid_text_holds_a_replacement_character() -> None:
    for text in TEXTS[:-2]:
        detok = detokenizer([bytes([byte]) for byte in text.encode()])
        assert all("\ufffd" not in detok.push(i) for i in range(len(text.encode())))
        assert detok.flush() == ""


def test_a_surrogate_is_no_character_wherever_it_is_cut() -> None:
    for data in (b"\xed\xa0", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xed\xa0", b"\xed\x9f\xbf"):
        for rest in (b"", b"\x00", b"a", "é".encode()):
            check([bytes([byte]) for byte in data + rest])
            check([data[:1], data[1:2], b"", data[2:], rest])


@given(st.lists(st.binary(max_size=5), max_size=12))
def test_any_bytes(pieces: list[bytes]) -> None:
    check(pieces)


@given(st.text(max_size=12), st.data())
def test_any_text_cut_anywhere(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    check([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)])


@given(
    st.lists(st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98", b"\x80", b"a", b"", b"\xff"]))
)
def test_broken_characters(pieces: list[bytes]) -> None:
    check(pieces)


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    detok = detokenizer([b"ok\xe2", b"\x82"])
    assert [detok.push(0), detok.push(1), detok.flush(), detok.flush()] == ["ok", "", "\ufffd", ""]


def test_special_tokens_are_skipped_or_shown_and_never_split_a_character() -> None:
    pieces = [b"\xe2\x82", b"\xac"]
    hidden = detokenizer(pieces)
    assert [hidden.push(t) for t in (0, SPECIAL, 1)] == ["", "", "€"]
    shown = detokenizer(pieces, skip_special=False)
    assert [shown.push(t) for t in (SPECIAL, 0, 1)] == ["<s>", "", "€"]


def test_tokens_that_begin_before_a_cut_stay() -> None:
    detok = detokenizer([b"ab", b"c\xe2", b"\x82\xac", b"d"])
    assert "".join(detok.push(i) for i in range(4)) == "abc€d"
    assert detok.starts == [0, 2, 3, 4]
    assert [detok.tokens_before(cut) for cut in range(6)] == [0, 1, 1, 2, 3, 4]


def test_a_fork_goes_its_own_way() -> None:
    detok = detokenizer([b"\xe2\x82", b"\xac", b"x"])
    detok.push(0)
    other = detok.fork()
    assert detok.push(1) == "€"
    assert other.push(2) == "\ufffdx"
    assert (detok.starts, other.starts) == ([0, 0], [0, 1])
