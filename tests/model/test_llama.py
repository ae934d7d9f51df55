"""The Llama family: every size is checked against a tensor, and what is not computed is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model import files
from unspool.errors import ModelFileError
from unspool.model.family import family_of
from unspool.model.gguf import read_gguf
from unspool.model.spec import ModelSpec, Rotary, inverse_frequencies


def spec_of(path: Path) -> ModelSpec:
    file = read_gguf(path)
    return family_of(file).read_spec(file)


@pytest.mark.parametrize("tied", [True, False])
def test_spec_and_roles(tmp_path: Path, tied: bool) -> None:
    file = read_gguf(files.write(tmp_path / "m.gguf", weights=files.tensors(tied)))
    family = family_of(file)
    spec = family.read_spec(file)
    assert spec == ModelSpec(
        architecture="llama",
        name="m",
        vocab_size=len(files.vocabulary()[0]),
        hidden_size=files.HIDDEN,
        intermediate_size=files.INNER,
        num_layers=files.LAYERS,
        num_heads=files.HEADS,
        num_kv_heads=files.KV_HEADS,
        head_dim=16,
        context_length=128,
        norm_epsilon=float(np.float32(1e-5)),
        tied_embeddings=tied,
        rotaries=(Rotary("interleaved", inverse_frequencies(16, 10000.0)),),
    )
    roles = family.tensors_by_role(file, spec)
    assert ("head" in roles) is not tied
    assert len(roles) == len(file.tensors)
    assert roles["layers.1.key"].name == "blk.1.attn_k.weight"
    assert roles["layers.0.feed_forward_norm"].name == "blk.0.ffn_norm.weight"
    assert roles["final_norm"].rows == 1


def test_head_size_and_rotated_part_may_be_stated(tmp_path: Path) -> None:
    weights = files.tensors()
    for layer in range(files.LAYERS):
        weights[f"blk.{layer}.attn_q.weight"] = np.zeros((4 * 32, 64), np.float32)
        weights[f"blk.{layer}.attn_k.weight"] = np.zeros((2 * 32, 64), np.float32)
        weights[f"blk.{layer}.attn_v.weight"] = np.zeros((2 * 32, 64), np.float32)
        weights[f"blk.{layer}.attn_output.weight"] = np.zeros((64, 4 * 32), np.float32)
    stated = {"llama.attention.key_length": 32, "llama.rope.dimension_count": 24}
    spec = spec_of(files.write(tmp_path / "m.gguf", files.metadata() | stated, weights))
    assert (spec.head_dim, spec.rotaries[0].dim) == (32, 24)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"llama.expert_count": 8}, "mixture of experts"),
    "linear rotary scaling": ({"llama.rope.scaling.type": "linear"}, "rotary scaling"),
    "rotary factor": ({"llama.rope.scaling.factor": 4.0}, "rotary scaling"),
    "sliding window": ({"llama.attention.sliding_window": 64}, "sliding-window"),
    "encoder": ({"llama.attention.causal": False}, "bidirectional"),
    "scale of logits": ({"llama.logit_scale": 0.5}, "logit_scale"),
    "no layers": ({"llama.block_count": 0}, "block_count is 0"),
    "a layer too many": ({"llama.block_count": 3}, r"'blk.2.attn_norm.weight' is missing"),
    "a layer too few": ({"llama.block_count": 1}, "'blk.1.attn_k.weight'"),
    "hidden size": ({"llama.embedding_length": 63}, "64 rows of 63|rows of 63"),
    "inner size": ({"llama.feed_forward_length": 32}, "ffn_gate"),
    "heads": ({"llama.attention.head_count": 8}, "multiple of 16"),
    "heads that do not divide": ({"llama.attention.head_count_kv": 3}, "evenly"),
    "more key heads than heads": ({"llama.attention.head_count_kv": 8}, "from 1 to 4"),
    "heads per layer": ({"llama.attention.head_count_kv": [2, 2]}, "whole number"),
    "key heads": ({"llama.attention.head_count_kv": 1}, "attn_k"),
    "other value size": ({"llama.attention.value_length": 32}, "must be equal"),
    "odd rotation": ({"llama.rope.dimension_count": 15}, "even number"),
    "rotation beyond the head": ({"llama.rope.dimension_count": 32}, "from 2 to 16"),
    "epsilon 0": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "above 0"),
    "theta infinite": ({"llama.rope.freq_base": float("inf")}, "finite"),
    "text for a number": ({"llama.context_length": "many"}, "whole number"),
    "context 0": ({"llama.context_length": 0}, "context_length is 0"),
    "vocabulary": ({"llama.vocab_size": 5}, "vocab_size is 5"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "does not state"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_metadata_that_cannot_be_honoured_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    values = {key: value for key, value in (files.metadata() | changes).items() if value is not None}
    with pytest.raises(ModelFileError, match=message):
        spec_of(files.write(tmp_path / "m.gguf", values))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rope_freqs.weight", "scaled rotary"),
        ("blk.0.attn_q.bias", "biases"),
        ("blk.0.ffn_gate_exps.weight", "mixture of experts"),
        ("blk.0.attn_q_norm.weight", "not computed"),
    ],
)
def test_tensors_that_are_not_computed_are_refused(tmp_path: Path, name: str, message: str) -> None:
    weights = files.tensors() | {name: np.zeros(32, np.float32)}
    with pytest.raises(ModelFileError, match=message):
        spec_of(files.write(tmp_path / "m.gguf", weights=weights))


def test_neutral_settings_are_accepted(tmp_path: Path) -> None:
    neutral = {
        "llama.expert_count": 0,
        "llama.rope.scaling.type": "none",
        "llama.rope.scaling.factor": 1.0,
        "llama.attention.value_length": 16,
        "llama.vocab_size": len(files.vocabulary()[0]),
    }
    assert spec_of(files.write(tmp_path / "m.gguf", files.metadata() | neutral)).rotaries[0].dim == 16


@pytest.mark.parametrize("architecture", ["mamba", "t5", "qwen2moe", "clip"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(ModelFileError, match=f"'{architecture}'; supported: llama"):
        spec_of(files.write(tmp_path / "m.gguf", architecture=architecture))


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    spec = spec_of(default_model_path)
    assert (spec.num_layers, spec.hidden_size, spec.head_dim, spec.rotaries[0].dim) == (30, 576, 64, 64)
    assert spec.tied_embeddings
    assert spec.cache_bytes_per_token() == 2 * 30 * 3 * 64 * 2
