"""Text to token ids and back, from a model file's own vocabulary.

Byte-level byte-pair encoding (``tokenizer.ggml.model`` is ``gpt2``), run by Hugging Face ``tokenizers``.
Special tokens spelled inside a text are text unless the caller asks for them; decoding joins the tokens'
bytes.
Source: Sennrich et al. 2016, https://arxiv.org/abs/1508.07909; the byte alphabet is GPT-2's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from unspool.errors import ModelFileError, ParameterError, shown
from unspool.model.byte_level import CHARACTER_OF_BYTE, piece_bytes
from unspool.model.metadata import Metadata
from unspool.model.pretokenizer import build_pre_tokenizer, pre_tokenization

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_END_TEXTS = (
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>",
    "<|call|>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip
"""Special tokens that end a text or a turn in some family, as files do not list all of theirs."""


@dataclass(frozen=True)
class SpecialTokens:
    """Which ids of a vocabulary are more than their text."""

    control: Mapping[str, int]
    """Text to id of the tokens that only ever are meant, never written: special tokens."""
    user_defined: Mapping[str, int]
    """Text to id of the tokens that are matched whole in any text."""
    bos: int | None
    ends: frozenset[int]
    add_bos: bool
    add_eos: int | None


class Tokenizer:
    """A model file's tokenizer. Immutable after construction, and safe to share between threads."""

    vocab_size: int
    bos_id: int | None
    """The token that begins a text, if the file names one."""
    add_bos: bool
    """Whether ``encode`` puts ``bos_id`` first when asked to add special tokens."""
    eos_ids: frozenset[int]
    """Every token that ends generation: end of text, end of turn, end of message."""
    special_ids: frozenset[int]
    """Every token that is not text: control tokens, the unknown token, beginnings and ends."""

    def __init__(self, plain: Encoder, special: Encoder, tokens: SpecialTokens) -> None:
        self._plain = plain
        self._special = special
        self._literal = frozenset(chain(tokens.control.values(), tokens.user_defined.values()))
        self._add_eos = tokens.add_eos
        self.vocab_size = plain.get_vocab_size(with_added_tokens=True)
        self.bos_id = tokens.bos
        self.add_bos = tokens.add_bos
        self.eos_ids = tokens.ends
        self.special_ids = frozenset(tokens.control.values())
        self._missing_bytes = _missing_bytes(plain)

    @classmethod
    def from_metadata(cls, values: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer that a GGUF file's ``tokenizer.ggml`` keys describe.

        Raises ``ModelFileError`` where they are damaged, or name a kind that is not supported.
        """
        metadata = Metadata(values)
        model = metadata.text("tokenizer.ggml.model")
        if model != "gpt2":
            what = "SentencePiece" if model == "llama" else "another kind"
            raise ModelFileError(
                f"tokenizer.ggml.model is {model!r} ({what}); supported: 'gpt2' (byte-level BPE)"
            )
        return _byte_level_tokenizer(metadata)

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """How the special tokens are written, the longest first."""
        texts = (self.id_to_token(token) for token in sorted(self.special_ids))
        return tuple(sorted(filter(None, texts), key=len, reverse=True))

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Matches special tokens in a text, the longest that begins at a place."""
        return re.compile("|".join(map(re.escape, self.special_texts)) or r"(?!)")

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of ``text``.

        add_special: begin (and end) as the file says that a prompt does.
        parse_special: special tokens spelled in ``text`` become those tokens; otherwise they are text.

        Raises ``ParameterError`` for a character that the vocabulary has no tokens for, or half a surrogate
        pair: nothing is dropped.
        """
        if not isinstance(text, str):
            raise ParameterError(f"only text can be encoded, not {shown(text)}")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ParameterError(
                f"the text holds half a surrogate pair, U+{ord(text[error.start]):04X} at character "
                f"{error.start}, which is no character; remove it"
            ) from None
        encoder = self._special if parse_special else self._plain
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        if not parse_special and not self.special_ids.isdisjoint(ids):
            ids = self._respell(ids)
        if self._missing_bytes and (match := self._missing_bytes.search(data)):
            self._refuse_dropped(ids, data, match.start())
        if add_special:
            begin = [self.bos_id] if self.add_bos and self.bos_id is not None else []
            end = [self._add_eos] if self._add_eos is not None else []
            ids = [*begin, *ids, *end]
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Raises ``ParameterError`` for what is no list of token ids of the vocabulary.
        """
        if isinstance(ids, (str, bytes, bytearray)) or not hasattr(type(ids), "__iter__"):
            raise ParameterError(f"only a flat list of token ids can be decoded, not {shown(ids)}")
        try:
            known = [self._known(i) for i in ids]
        except TypeError:  # an array of no dimension
            raise ParameterError(f"only a flat list of token ids can be decoded, not {shown(ids)}") from None
        parts = (self.token_bytes(i) for i in known if not (skip_special and i in self.special_ids))
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; of a special token, its text."""
        piece = self.id_to_token(token)
        return piece.encode("utf-8") if token in self._literal else piece_bytes(piece)

    def id_to_token(self, token: int) -> str:
        """How the vocabulary writes a token. Raises ``ParameterError`` for an id outside the vocabulary."""
        piece = self._plain.id_to_token(self._known(token))
        assert piece is not None  # ids are dense: the vocabulary was checked when it was built
        return piece

    def token_to_id(self, piece: str) -> int | None:
        """The id of the token that the vocabulary writes as ``piece``, or None."""
        token: int | None = self._plain.token_to_id(piece)
        return token

    def _known(self, token: int) -> int:
        """``token`` as an int, if it is the id of a token."""
        try:
            number = operator.index(token)
        except TypeError:
            number = -1
        if not 0 <= number < self.vocab_size:
            raise ParameterError(
                f"token id {shown(token)} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}"
            )
        return number

    def _respell(self, ids: list[int]) -> list[int]:
        """Spell special tokens that plain text came to (whole pieces of it) in bytes instead."""
        spelled: list[int] = []
        for token in ids:
            if token not in self.special_ids:
                spelled.append(token)
                continue
            for byte in self.token_bytes(token):
                part = self.token_to_id(CHARACTER_OF_BYTE[byte])
                if part is None or part in self.special_ids:
                    raise ParameterError(
                        f"the text spells the special token {self.id_to_token(token)!r} and the vocabulary "
                        "has no other tokens to write it with; remove it"
                    )
                spelled.append(part)
        return spelled

    def _refuse_dropped(self, ids: list[int], data: bytes, position: int) -> None:
        """Raise if the tokens lost a character of the text, the first of them at byte ``position``."""
        if b"".join(map(self.token_bytes, ids)) == data:
            return  # a special or user-defined token holds it
        start = len(data[:position].decode("utf-8", "ignore"))
        character = data.decode("utf-8")[start]
        raise ParameterError(
            f"the text holds U+{ord(character):04X} at character {start}, and the model's vocabulary has no "
            "token for it; remove it"
        )


def _byte_level_tokenizer(metadata: Metadata) -> Tokenizer:
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Encoder

    way = pre_tokenization(metadata.text("tokenizer.ggml.pre"))
    pieces = list(metadata.strings("tokenizer.ggml.tokens"))
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces) or not pieces:
        raise ModelFileError(f"the vocabulary has {len(pieces)} tokens and {len(vocabulary)} different ones")
    special = _special_tokens(metadata, pieces, vocabulary, way.add_bos)
    merges = [_merge(text, vocabulary) for text in metadata.strings("tokenizer.ggml.merges")]
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=way.ignore_merges)
    pre_tokenizer = build_pre_tokenizer(way)
    plain, parsing = Encoder(model), Encoder(model)  # two views on one model
    for encoder, matched in (
        (plain, special.user_defined),
        (parsing, {**special.user_defined, **special.control}),
    ):
        encoder.pre_tokenizer = pre_tokenizer
        encoder.add_tokens([AddedToken(text, normalized=False) for text in matched])
    return Tokenizer(plain, parsing, special)


def _merge(text: str, vocabulary: Mapping[str, int]) -> tuple[str, str]:
    """One merge, ``left right``: each of the three pieces is in the vocabulary."""
    left, space, right = text.partition(" ")
    if not space or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise ModelFileError(f"the merge {text!r} is not two tokens of the vocabulary that make a third")
    return left, right


def _special_tokens(
    metadata: Metadata, pieces: list[str], vocabulary: Mapping[str, int], add_bos: bool
) -> SpecialTokens:
    """Sort the vocabulary by ``tokenizer.ggml.token_type``, and find where texts begin and end."""
    kinds = metadata.numbers("tokenizer.ggml.token_type").tolist()
    if len(kinds) not in (0, len(pieces)):
        raise ModelFileError(f"{len(pieces)} tokens have {len(kinds)} types in tokenizer.ggml.token_type")
    control = {i for i, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN)}
    user_defined = {i for i, kind in enumerate(kinds) if kind == _USER_DEFINED}

    def named(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        return metadata.integer(key, most=len(pieces) - 1) if key in metadata else None

    bos, eos = named("bos"), named("eos")
    ends = {token for token in (eos, named("eot"), named("eom")) if token is not None}
    ends |= {vocabulary[text] for text in _END_TEXTS if vocabulary.get(text) in control | user_defined}
    control |= ends if bos is None else ends | {bos}
    return SpecialTokens(
        control={pieces[i]: i for i in sorted(control) if pieces[i]},
        user_defined={pieces[i]: i for i in sorted(user_defined - control) if pieces[i]},
        bos=bos,
        ends=frozenset(ends),
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token", add_bos and bos is not None),
        add_eos=eos if metadata.flag("tokenizer.ggml.add_eos_token", False) else None,
    )


def _missing_bytes(encoder: Encoder) -> re.Pattern[bytes] | None:
    """A pattern of the bytes that the vocabulary has no token for, or None where it has all 256."""
    missing = [b for b, character in CHARACTER_OF_BYTE.items() if encoder.token_to_id(character) is None]
    return re.compile(b"[" + b"".join(b"\\x%02x" % byte for byte in missing) + b"]") if missing else None
