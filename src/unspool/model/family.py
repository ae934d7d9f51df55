"""Which module makes a runnable model of a file's architecture."""

from __future__ import annotations

from typing import Protocol

from unspool.errors import ModelFileError
from unspool.model import llama
from unspool.model.gguf import GgufFile
from unspool.model.spec import ModelSpec
from unspool.model.tensor import Tensor


class Family(Protocol):
    """A module that knows one family of architectures, such as ``unspool.model.llama``."""

    def read_spec(self, file: GgufFile) -> ModelSpec:
        """The model's sizes, each checked against the shapes of the tensors."""
        ...

    def tensors_by_role(self, file: GgufFile, spec: ModelSpec) -> dict[str, Tensor]:
        """The tensors under the names that a backend asks for."""
        ...


FAMILIES: dict[str, Family] = {"llama": llama}
"""``general.architecture`` to the module that reads it."""


def family_of(file: GgufFile) -> Family:
    """The family that reads ``file``; raises ``ModelFileError`` naming an architecture that none does."""
    architecture = file.metadata.get("general.architecture")
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise ModelFileError(
            f"{file.path}: the architecture is {architecture!r}; supported: {', '.join(sorted(FAMILIES))}"
        )
    return family
