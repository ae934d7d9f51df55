"""Writes a GGUF of a Llama of about a billion random weights: what an engine reads, and nothing that it says.

The tokenizer is the default model's, so that every engine takes the file. Blocks are drawn once and repeated:
speed does not depend on what weights hold, as long as rows stay finite.

    python -m benchmarks.make_llama /tmp/llama.gguf --type q4_k
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from unspool.model.registry import resolve

VOCABULARY = 49_152
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2048, 5632, 22, 32, 4, 64
"""Those of TinyLlama 1.1B."""

TYPES = {"q4_k": gguf.GGMLQuantizationType.Q4_K, "q8_0": gguf.GGMLQuantizationType.Q8_0}
DRAWN_BLOCKS = 1 << 16

Bytes = npt.NDArray[np.uint8]


def draw_blocks(kind: gguf.GGMLQuantizationType) -> Bytes:
    """[blocks, bytes] of values with about mean 0 and deviation 0.02."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (DRAWN_BLOCKS, size), np.uint8)
    scales = (0.02 / 255, 7.5 * 0.02 / 255) if kind == gguf.GGMLQuantizationType.Q4_K else (0.02 / 74,)
    halves = np.array(scales, np.float16).view(np.uint8)
    blocks[:, : len(halves)] = halves
    return blocks


def matrix(blocks: Bytes, kind: gguf.GGMLQuantizationType, rows: int, columns: int, turn: int) -> Bytes:
    """[rows, bytes], the drawn blocks from another one on for each ``turn``."""
    inputs, size = gguf.GGML_QUANT_SIZES[kind]
    count = rows * columns // inputs
    at = (np.arange(count) + 7919 * turn) % len(blocks)
    found: Bytes = blocks[at].reshape(rows, columns // inputs * size)
    return found


def matrices() -> dict[str, tuple[int, int]]:
    """Name to (outputs, inputs); the head is the embedding."""
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return shapes


def add_metadata(writer: gguf.GGUFWriter) -> None:
    """The sizes, and the default model's tokenizer."""
    writer.add_name("random Llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    for key, field in gguf.GGUFReader(resolve("smollm2", None)).fields.items():
        if key.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)


def write(path: Path, kind: gguf.GGMLQuantizationType) -> int:
    """Write the file; returns how many weights its matrices hold."""
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    add_metadata(writer)
    blocks, ones = draw_blocks(kind), np.ones(HIDDEN, np.float32)
    for turn, (name, shape) in enumerate(matrices().items()):
        writer.add_tensor(name, matrix(blocks, kind, *shape, turn), raw_dtype=kind)
    for name in ("output", *(f"blk.{i}.{part}" for i in range(LAYERS) for part in ("attn", "ffn"))):
        writer.add_tensor(f"{name}_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sum(rows * columns for rows, columns in matrices().values())


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=TYPES, default="q4_k")
    options = parser.parse_args()
    count = write(options.path, TYPES[options.type])
    print(f"{options.path}: {count / 1e9:.2f} billion weights, {options.path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
