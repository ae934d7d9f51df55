"""A model by name or path, made ready for a backend: spec, tensors by role, tokenizer, chat template."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unspool.errors import ModelFileError, ParameterError, shown
from unspool.model.chat_template import ChatTemplate
from unspool.model.family import family_of
from unspool.model.gguf import read_gguf
from unspool.model.registry import Progress, resolve
from unspool.model.spec import ModelSpec
from unspool.model.tensor import Tensor
from unspool.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """All that is known of a model before a backend takes its tensors."""

    path: Path
    spec: ModelSpec
    tensors: dict[str, Tensor]
    """By role, mapped from the file: ``embedding``, ``final_norm``, ``layers.0.query``, ..."""
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """How the model wants messages written, if its file says."""
    metadata: Mapping[str, Any]
    """What the file states, by its own keys; arrays stay in the file until they are read."""
    release_pages: Callable[[], None]
    """Give the file's resident pages back to the system, once the tensors have been repacked."""


def load(name_or_path: str | Path, progress: Progress | None = None) -> LoadedModel:
    """Fetch (if need be), map and check a model.

    Raises ``ModelNotFoundError`` if there is no such model, ``ModelFileError`` if it cannot be run and
    ``ParameterError`` for what is no name and no path.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ParameterError(f"model must be a name or the path of a .gguf file, not {shown(name_or_path)}")
    path = resolve(os.fsdecode(name_or_path), progress)
    file = read_gguf(path)
    family = family_of(file)
    spec = family.read_spec(file)
    tensors = family.tensors_by_role(file, spec)
    tokenizer = Tokenizer.from_metadata(file.metadata)
    if tokenizer.vocab_size != spec.vocab_size:
        raise ModelFileError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens and the embedding "
            f"{spec.vocab_size} rows; the file is damaged"
        )
    return LoadedModel(
        path,
        spec,
        tensors,
        tokenizer,
        _chat_template(file.metadata, tokenizer),
        file.metadata,
        file.release_pages,
    )


def _chat_template(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError(f"tokenizer.chat_template is {shown(source)}; text is needed")
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    return ChatTemplate(
        source,
        bos="" if tokenizer.bos_id is None else tokenizer.id_to_token(tokenizer.bos_id),
        eos=tokenizer.id_to_token(eos) if isinstance(eos, int) else "",
    )
