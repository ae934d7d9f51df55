"""How text is cut before byte pairs are merged: one list of patterns for each ``tokenizer.ggml.pre``.

Patterns are applied in order, each to every piece that the ones before it left; what a pattern does not match
stays a piece of its own. The names and patterns are those of llama.cpp, which writes ``tokenizer.ggml.pre``;
tests hold each against its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unspool.errors import ModelFileError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"


@dataclass(frozen=True)
class PreTokenization:
    """One way of cutting text, and what comes with it by default."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as it stands is that token, whatever the merges make of it."""
    add_bos: bool = False
    """Whether prompts begin with the beginning-of-text token when the file does not say."""


_GPT2_LIKE = PreTokenization((_GPT2,))
_DIGITS_THEN_GPT2 = PreTokenization((r"\p{N}", _GPT2))
_LLAMA3_LIKE = PreTokenization((_LLAMA3,), ignore_merges=True, add_bos=True)

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_LIKE,
    "mpt": _GPT2_LIKE,
    "olmo": _GPT2_LIKE,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "command-r": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "exaone": _DIGITS_THEN_GPT2,
    "minerva-7b": _DIGITS_THEN_GPT2,
    "llama-bpe": _LLAMA3_LIKE,
    "llama3": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "falcon3": _LLAMA3_LIKE,
    "dbrx": PreTokenization((_LLAMA3,)),
    "smaug-bpe": PreTokenization((_LLAMA3,)),
    "qwen2": PreTokenization((_QWEN2,)),
    "deepseek-r1-qwen": PreTokenization((_QWEN2,)),
    "stablelm2": PreTokenization((_QWEN2,)),
}


def pre_tokenization(name: str) -> PreTokenization:
    """The way of cutting text that a file calls ``name``; raises ``ModelFileError`` if it is not known."""
    if name not in PRE_TOKENIZATIONS:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {name!r}, which is not known, so text could not be cut as the model was "
            f"trained; supported: {', '.join(sorted(PRE_TOKENIZATIONS))}"
        )
    return PRE_TOKENIZATIONS[name]


def build_pre_tokenizer(way: PreTokenization) -> PreTokenizer:
    """The cutting as Hugging Face ``tokenizers`` runs it, ending in the byte-level alphabet."""
    from tokenizers import Regex, pre_tokenizers

    *first, last = way.patterns
    steps: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in first]
    if last == _GPT2:  # ByteLevel's own pattern, compiled
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        steps.append(pre_tokenizers.Split(Regex(last), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
