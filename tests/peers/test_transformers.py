"""Logits beside Hugging Face Transformers in float32, the implementation that models are published with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.backend.steps import make_sequences, one_by_one, step_of
from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import Weights, make_tensors, random_weights, tiny_spec
from unspool import LLM
from unspool.backend.base import Float32Array
from unspool.backend.cpu import CpuBackend
from unspool.model.gguf import read_gguf
from unspool.model.spec import ModelSpec
from unspool.model.tensor import TensorType

torch: Any = pytest.importorskip("torch", reason="the oracle is in the extra `peers`")
transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")

TEXT = Path(__file__).parents[2] / "LICENSE"

HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def to_halves(weight: Float32Array, heads: int) -> Float32Array:
    """Rows of rotary pairs (2i, 2i + 1), a GGUF's order, to Transformers' (i, i + half)."""
    rows, columns = weight.shape
    return weight.reshape(heads, -1, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def transformers_llama(spec: ModelSpec, weights: Weights) -> Any:
    """A LlamaForCausalLM in float32 with a tiny model's weights."""
    (rotary,) = spec.rotaries
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.norm_epsilon,
        rope_theta=round(rotary.inverse_frequencies[1] ** (-rotary.dim / 2)),
        max_position_embeddings=spec.context_length,
        tie_word_embeddings=spec.tied_embeddings,
        attn_implementation="eager",
    )
    state = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
        "lm_head.weight": weights.get("output.weight", weights["token_embd.weight"]),
    }
    for layer in range(spec.num_layers):
        for ours, theirs in HF_NAMES.items():
            weight = weights[f"blk.{layer}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                weight = to_halves(weight, spec.num_heads if ours == "attn_q" else spec.num_kv_heads)
            state[f"model.layers.{layer}.{theirs}.weight"] = weight
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.load_state_dict({name: torch.from_numpy(w.copy()) for name, w in state.items()})
    return model


def logits_of(model: Any, tokens: Any) -> Float32Array:
    with torch.no_grad():
        logits: Float32Array = (
            model(torch.tensor(np.asarray(tokens)[None], dtype=torch.long)).logits[0].numpy()
        )
    return logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_tiny_llama_has_transformers_logits(tied: bool) -> None:
    spec = tiny_spec(tied_embeddings=tied)
    weights = random_weights(spec)
    (branch,) = make_sequences([150], spec.vocab_size)
    expected = logits_of(transformers_llama(spec, weights), branch.tokens)

    reference = ReferenceBackend(spec, weights)
    reference.allocate(16)
    np.testing.assert_allclose(
        reference.forward(step_of([(branch, 150)])).logits.numpy(), expected, atol=1e-4
    )

    native = CpuBackend(spec, make_tensors(weights, TensorType.F32))
    native.allocate(16)
    prefilled = native.forward(step_of([(branch, 150)])).logits.numpy().copy()
    # The cache holds halves: what they round away is all that may differ.
    np.testing.assert_allclose(prefilled, expected, atol=3e-2)
    assert np.abs(prefilled - expected).mean() < 3e-3
    (stepped,) = one_by_one(native, [branch])
    assert stepped.tobytes() == prefilled.tobytes()


def test_a_caller_that_flushes_subnormal_numbers_gets_the_same_bits() -> None:
    """PyTorch sets that on the calling thread alone; a head of subnormal weights makes such logits."""
    spec = tiny_spec(tied_embeddings=False)
    weights = random_weights(spec)
    weights["output.weight"] *= np.float32(1e-38)
    tensors = make_tensors(weights, TensorType.F32)
    rows = []
    for flush in (False, True):
        native = CpuBackend(spec, tensors, threads=2)
        native.allocate(16)
        (branch,) = make_sequences([40], spec.vocab_size)
        torch.set_flush_denormal(flush)
        try:
            rows.append(native.forward(step_of([(branch, 40)])).logits.numpy().tobytes())
        finally:
            torch.set_flush_denormal(False)
    assert rows[0] == rows[1]


@pytest.mark.model
def test_the_default_model_stays_close_to_float32(default_model_path: Path) -> None:
    """Int8 activations and a float16 cache against float32 on the same, dequantized weights."""
    with LLM(default_model_path) as llm:
        tokens = llm.tokenizer.encode(TEXT.read_text())[:256]
        ours = llm.logits(tokens).astype(np.float64)
        peer = transformers_llama(llm.spec, dequantized(default_model_path))
    theirs = logits_of(peer, tokens).astype(np.float64)
    p = theirs - np.logaddexp.reduce(theirs, axis=1, keepdims=True)
    q = ours - np.logaddexp.reduce(ours, axis=1, keepdims=True)
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    assert divergence.mean() < 0.0035
    assert (p.argmax(axis=1) == q.argmax(axis=1)).mean() > 0.94


def dequantized(path: Path) -> Weights:
    """Every weight of a GGUF as its reference dequantization has it, by name."""
    weights = {}
    for name, tensor in read_gguf(path).tensors.items():
        kind = gguf.GGMLQuantizationType(int(tensor.type))
        stored = tensor.data if tensor.type == TensorType.F32 else tensor.data.reshape(tensor.rows, -1)
        values = gguf.quants.dequantize(
            stored.view(np.float32) if tensor.type == TensorType.F32 else stored, kind
        )
        weights[name] = values.reshape(-1) if tensor.rows == 1 else values.reshape(tensor.rows, -1)
    return weights
