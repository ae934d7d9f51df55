"""Ids equal llama.cpp's, text comes back, and special tokens are special only when asked for."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model import files
from unspool.errors import ModelFileError, ParameterError
from unspool.model.gguf import read_gguf
from unspool.model.pretokenizer import PRE_TOKENIZATIONS
from unspool.model.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer.json.gz"
UNWRITABLE = "\x04\x06\x13\x14\x16\x1d"
"""Control characters that SmolLM2's vocabulary has no token for."""


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))


@pytest.fixture(scope="module")
def smollm2(default_model_path: Path) -> Tokenizer:
    return Tokenizer.from_metadata(read_gguf(default_model_path).metadata)


def tiny(**changes: Any) -> Tokenizer:
    return Tokenizer.from_metadata(files.metadata(**changes))


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return tiny()


def unwritable(text: str) -> bool:
    return any(c in UNWRITABLE or 0x40000 <= ord(c) < 0xC0000 or ord(c) >= 0x140000 for c in text)


@pytest.mark.model
@pytest.mark.parametrize("pre", ["smollm", "default", "gpt-2", "llama-bpe", "dbrx", "qwen2"])
def test_ids_are_those_of_llama_cpp(golden: Any, default_model_path: Path, pre: str) -> None:
    """One difference is meant: llama.cpp drops characters that the vocabulary cannot write; we refuse them,
    as nothing is dropped silently."""
    values = dict(read_gguf(default_model_path).metadata) | {"tokenizer.ggml.pre": pre}
    tokenizer = Tokenizer.from_metadata(values)
    compared = 0
    for text, ids in zip(golden["texts"], golden["plain"][pre], strict=False):
        if unwritable(text):
            with pytest.raises(ParameterError, match="no token for it"):
                tokenizer.encode(text)
            continue
        compared += 1
        assert tokenizer.encode(text, add_special=False) == ids, ascii(text)
        assert tokenizer.decode(ids) == text
    assert compared >= 0.9 * len(golden["plain"][pre])


@pytest.mark.model
def test_special_tokens_are_those_of_llama_cpp_when_asked_for(golden: Any, smollm2: Tokenizer) -> None:
    for text, ids in zip(golden["texts"], golden["special"], strict=False):
        if not unwritable(text):
            assert smollm2.encode(text, parse_special=True) == ids, ascii(text)


def test_every_other_name_of_a_cut_is_one_that_llama_cpp_takes_for_the_same(golden: Any) -> None:
    known = set(golden["plain"])
    for pre, others in golden["same_as"].items():
        for other in others:
            assert PRE_TOKENIZATIONS[other] == PRE_TOKENIZATIONS[pre]
        known |= {pre, *others}
    assert known == set(PRE_TOKENIZATIONS)


@pytest.mark.model
@given(st.text(max_size=40))
@settings(max_examples=300)
def test_decoding_gives_the_text_back(smollm2: Tokenizer, text: str) -> None:
    if unwritable(text):
        with pytest.raises(ParameterError, match="no token for it"):
            smollm2.encode(text)
    else:
        ids = smollm2.encode(text)
        assert smollm2.decode(ids) == text
        assert b"".join(map(smollm2.token_bytes, ids)) == text.encode()
        assert smollm2.special_ids.isdisjoint(ids)


@given(st.lists(st.sampled_from([*files.SPECIAL, "<|", "end", "|>", "the", " ", "é", "\n"]), max_size=8))
def test_special_tokens_in_a_text_are_text(small: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = small.encode(text)
    assert small.special_ids.isdisjoint(ids)
    assert small.decode(ids) == text


@pytest.mark.model
def test_what_the_default_model_says_of_itself(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.special_ids == frozenset(range(17))
    assert {smollm2.id_to_token(i) for i in smollm2.eos_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert (smollm2.bos_id, smollm2.add_bos) == (1, False)
    assert smollm2.token_bytes(2) == b"<|im_end|>"


def test_special_tokens_are_parsed_when_asked_for_and_skipped_when_decoded(small: Tokenizer) -> None:
    ids = small.encode("the<|end|>ab", parse_special=True)
    assert [small.id_to_token(i) for i in ids] == ["the", "<|end|>", "ab"]
    assert small.decode(ids) == "theab"
    assert small.decode(ids, skip_special=False) == "the<|end|>ab"


def test_user_defined_tokens_are_matched_in_any_text_and_are_shown(small: Tokenizer) -> None:
    ids = small.encode("ab<think>ab")
    assert [small.id_to_token(i) for i in ids] == ["ab", "<think>", "ab"]
    assert small.decode(ids) == "ab<think>ab"


def test_beginnings_and_ends_are_added_as_the_file_says() -> None:
    both = tiny(tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=True)
    assert both.encode("ab") == [1, *both.encode("ab", add_special=False), 0]
    assert tiny(tokenizer__ggml__add_bos_token=None, tokenizer__ggml__pre="llama-bpe").add_bos
    assert not tiny(tokenizer__ggml__add_bos_token=None).add_bos


def test_a_piece_that_spells_a_special_token_is_still_text() -> None:
    """llama-bpe takes a piece that is a token whole; were that a special token, a user could write it."""
    tokens = files.vocabulary()[0]
    tokens[0] = "stop"
    tokenizer = tiny(tokenizer__ggml__tokens=tokens, tokenizer__ggml__pre="llama-bpe")
    ids = tokenizer.encode("stop", add_special=False)
    assert 0 not in ids
    assert tokenizer.decode(ids) == "stop"
    assert tokenizer.encode("stop", add_special=False, parse_special=True) == [0]


def test_half_a_surrogate_pair_is_refused(small: Tokenizer) -> None:
    with pytest.raises(ParameterError, match=r"U\+D800 at character 2"):
        small.encode("ab\ud800")


def test_a_character_without_a_token_is_named(small: Tokenizer) -> None:
    tokens, types = files.vocabulary()
    gone = tokens.index("Ċ")  # the newline
    tokenizer = tiny(
        tokenizer__ggml__tokens=tokens[:gone] + tokens[gone + 1 :], tokenizer__ggml__token_type=types[:-1]
    )
    with pytest.raises(ParameterError, match=r"U\+000A at character 1"):
        tokenizer.encode("é\n")
    assert tokenizer.decode(tokenizer.encode("é")) == "é"


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_id_outside_the_vocabulary_is_refused(small: Tokenizer, token: int) -> None:
    with pytest.raises(ParameterError, match=f"token id {token}"):
        small.decode([token])


@pytest.mark.parametrize("bad", [None, 5, 1.5, b"x", ["x"]])
def test_only_text_is_encoded(small: Tokenizer, bad: Any) -> None:
    with pytest.raises(ParameterError, match="only text can be encoded"):
        small.encode(bad)


@pytest.mark.parametrize("bad", [None, 5, "ab", b"ab", np.array(3), [1.5], ["x"], [None], np.array([[1, 2]])])
def test_only_token_ids_are_decoded(small: Tokenizer, bad: Any) -> None:
    with pytest.raises(ParameterError, match="token id"):
        small.decode(bad)
    assert small.decode(np.array([3, 4])) == small.decode([3, 4])


TOKENS, TYPES = files.vocabulary()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__ggml__model": "llama"}, "SentencePiece"),
        ({"tokenizer__ggml__model": "rwkv"}, "'rwkv'"),
        ({"tokenizer__ggml__pre": "tekken"}, "'tekken', which is not known"),
        ({"tokenizer__ggml__pre": None}, "does not state tokenizer.ggml.pre"),
        ({"tokenizer__ggml__tokens": [*TOKENS[:-1], TOKENS[0]]}, "different"),
        ({"tokenizer__ggml__tokens": []}, "0 tokens"),
        ({"tokenizer__ggml__token_type": TYPES[:-1]}, "types"),
        ({"tokenizer__ggml__token_type": 3}, "token_type is not a list of whole numbers"),
        ({"tokenizer__ggml__token_type": [1.0] * len(TYPES)}, "token_type is not a list of whole numbers"),
        ({"tokenizer__ggml__token_type": ["1"] * len(TYPES)}, "token_type is not a list of whole numbers"),
        ({"tokenizer__ggml__merges": ["h e", "nothing"]}, "the merge 'nothing'"),
        ({"tokenizer__ggml__merges": ["a c"]}, "the merge 'a c'"),
        ({"tokenizer__ggml__eos_token_id": len(TOKENS)}, "eos_token_id is"),
        ({"tokenizer__ggml__bos_token_id": "first"}, "bos_token_id is"),
        ({"tokenizer__ggml__add_bos_token": 1}, "true or false"),
    ],
)
def test_a_damaged_or_unknown_tokenizer_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        tiny(**changes)


def test_one_tokenizer_serves_several_threads(small: Tokenizer) -> None:
    text = "the ab <|end|> the" * 50
    want = [small.encode(text), small.encode(text, parse_special=True)]
    wrong: list[int] = []

    def work(special: bool) -> None:
        for _ in range(50):
            if small.encode(text, parse_special=special) != want[special]:
                wrong.append(1)

    threads = [threading.Thread(target=work, args=(bool(i % 2),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
