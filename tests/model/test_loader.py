"""A model by name or path: everything is there, light, and checked against everything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.model import files
from unspool.errors import ModelFileError, ModelNotFoundError, ParameterError
from unspool.model.loader import load


def test_a_small_model_loads(tmp_path: Path) -> None:
    path = files.write(tmp_path / "m.gguf")
    model = load(path)
    assert model.path == path
    assert model.tokenizer.vocab_size == model.spec.vocab_size
    assert model.tensors["embedding"].rows == model.spec.vocab_size
    assert model.chat_template is not None
    assert (model.chat_template.bos, model.chat_template.eos) == ("<|start|>", "<|end|>")
    assert model.metadata["llama.context_length"] == 128
    model.release_pages()
    assert model.tensors["final_norm"].data.nbytes == 4 * files.HIDDEN


def test_a_model_without_a_chat_template_has_none(tmp_path: Path) -> None:
    values = files.metadata()
    del values["tokenizer.chat_template"]
    assert load(files.write(tmp_path / "m.gguf", values)).chat_template is None


@pytest.mark.parametrize("template", [5, True, 0.5, ["{{ messages }}"]])
def test_a_chat_template_that_is_no_text_is_refused(tmp_path: Path, template: Any) -> None:
    values = files.metadata(tokenizer__chat_template=template)
    with pytest.raises(ModelFileError, match="chat_template"):
        load(files.write(tmp_path / "m.gguf", values))


def test_tokenizer_and_embedding_must_agree(tmp_path: Path) -> None:
    tokens, types = files.vocabulary()
    values = files.metadata(tokenizer__ggml__tokens=[*tokens, "x1"], tokenizer__ggml__token_type=[*types, 1])
    with pytest.raises(ModelFileError, match="tokenizer has"):
        load(files.write(tmp_path / "m.gguf", values))


def test_no_model_is_said() -> None:
    with pytest.raises(ModelNotFoundError):
        load("no-such-model")


@pytest.mark.parametrize("bad", [None, 5, True, b"smollm2", ["smollm2"]])
def test_what_is_no_name_and_no_path_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="model must be a name or the path"):
        load(bad)


LIGHT = """
import sys
import unspool, unspool.model.loader, unspool.cli.models
heavy = {"tokenizers", "jinja2", "huggingface_hub", "rich.progress", "filelock", "platformdirs"}
print(sorted(heavy & set(sys.modules)))
"""


def test_importing_loads_nothing_heavy() -> None:
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


MEMORY = """
import sys
from pathlib import Path
from typing import Any
from unspool.model.loader import load
def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024
before = private()
model = load(sys.argv[1])
print(private() - before)
"""


@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_the_default_model_takes_little_memory_of_its_own(default_model_path: Path) -> None:
    """Before its tensors are packed, a model is its tokenizer: not its file, and no Python vocabulary."""
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, str(default_model_path)], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) < 40
