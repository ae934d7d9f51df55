"""Small model files, written by the ``gguf`` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from unspool.model.byte_level import CHARACTER_OF_BYTE

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
WORDS = ["he", "the", "Ġt", "Ġthe", "ab", "Ġa"]
MERGES = ["h e", "t he", "Ġ t", "Ġt he", "a b", "Ġ a"]
SPECIAL = ["<|end|>", "<|start|>", "<think>", "</think>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types: two special ones, two user-defined ones, all bytes, a few merges."""
    tokens = [*SPECIAL, *(CHARACTER_OF_BYTE[b] for b in range(256)), *WORDS]
    return tokens, [3, 3, 4, 4, *[1] * (256 + len(WORDS))]


def metadata(**changes: Any) -> dict[str, Any]:
    """What a small Llama's file states; a change of None leaves a key out."""
    tokens, types = vocabulary()
    values: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def tensors(tied: bool = True) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Random tensors by their names in the file."""
    generator = np.random.default_rng(0)
    vocab, head_dim = len(vocabulary()[0]), HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab, HIDDEN), "output_norm": (HIDDEN,)}
    if not tied:
        shapes["output"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HEADS * head_dim, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * head_dim, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * head_dim, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HEADS * head_dim),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, INNER),
        }
    return {f"{name}.weight": generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write(
    path: Path,
    values: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray[Any, np.dtype[np.float32]]] | None = None,
    architecture: str = "llama",
    quantized: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a GGUF file; ``quantized`` says which tensors are stored as something else than float32."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata() if values is None else values).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in (tensors() if weights is None else weights).items():
        kind = (quantized or {}).get(name)
        if kind is None:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
