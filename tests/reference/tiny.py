"""Tiny models with random weights: a spec, a byte-level tokenizer, weights, and a GGUF file of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from unspool.model.spec import LayerSpec, ModelSpec, Rotary, inverse_frequencies
from unspool.model.tensor import Tensor, TensorType

Weights = dict[str, npt.NDArray[np.float32]]

ROPE_THETA = 10000.0
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("Ġ", "the"), ("Ã", "©"), ("a", "ð")]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


ROLES = {
    "token_embd": "embedding",
    "output_norm": "final_norm",
    "output": "head",
    "attn_norm": "attention_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
"""What a tensor's name in a file means to a backend."""


def role(name: str) -> str:
    """A backend's name for a tensor: ``blk.0.attn_q.weight`` is ``layers.0.query``."""
    parts = name.split(".")
    return ROLES[parts[0]] if parts[0] != "blk" else f"layers.{parts[1]}.{ROLES[parts[2]]}"


def byte_characters() -> list[str]:
    """The printable character that GPT-2's byte-level BPE writes for each of the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(256)]


def vocabulary() -> list[str]:
    """Tokens in id order: specials, 256 bytes, merges; 266 in all, no multiple of any panel."""
    return [*SPECIALS, *byte_characters(), *(a + b for a, b in MERGES)]


class TinyTokenizer:
    """Byte-level BPE over ``vocabulary()``: what a model's tokenizer offers, in plain Python."""

    def __init__(self, bos_id: int | None = None) -> None:
        self.tokens = vocabulary()
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.characters = byte_characters()
        self.bytes_of = {c: b for b, c in enumerate(self.characters)}
        self.vocab_size = len(self.tokens)
        self.bos_id = bos_id
        self.special_ids = frozenset(range(len(SPECIALS)))
        self.eos_ids = frozenset({0, 2})

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        ids = [self.bos_id] if add_special and self.bos_id is not None else []
        while parse_special and (found := [(text.find(s), s) for s in SPECIALS if s in text]):
            at, special = min(found)
            ids += [*self._encode_plain(text[:at]), self.ids[special]]
            text = text[at + len(special) :]
        return ids + self._encode_plain(text)

    def _encode_plain(self, text: str) -> list[int]:
        pieces = [self.characters[b] for b in text.encode()]
        for a, b in MERGES:
            i = 0
            while i + 1 < len(pieces):
                if (pieces[i], pieces[i + 1]) == (a, b):
                    pieces[i : i + 2] = [a + b]
                i += 1
        return [self.ids[p] for p in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self.special_ids:
            return self.tokens[token_id].encode()
        return bytes(self.bytes_of[c] for c in self.tokens[token_id])

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        kept = [i for i in ids if not (skip_special and i in self.special_ids)]
        return b"".join(self.token_bytes(i) for i in kept).decode("utf-8", errors="replace")


def tiny_spec(rope_dim: int = 16, rope_theta: float = ROPE_THETA, **changes: Any) -> ModelSpec:
    """The default tiny spec, with any of its fields changed. ``rope_dim=0``: nothing is rotated."""
    spec = ModelSpec(
        architecture="llama",
        name="tiny",
        vocab_size=len(vocabulary()),
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        context_length=512,
        norm_epsilon=1e-5,
        tied_embeddings=True,
    )
    if rope_dim:
        spec = replace(spec, rotaries=(Rotary("interleaved", inverse_frequencies(rope_dim, rope_theta)),))
    else:
        spec = replace(spec, layers=(LayerSpec(rotary=None),) * spec.num_layers)
    return replace(spec, **changes)


def random_weights(spec: ModelSpec, seed: int = 0, std: float = 0.2) -> Weights:
    """Normal weights (norms around 1), by GGUF name; matrices are [outputs, inputs]."""
    rng = np.random.default_rng(seed)
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    h, f = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, h),
        "output_norm.weight": (h,),
    }
    if not spec.tied_embeddings:
        shapes["output.weight"] = (spec.vocab_size, h)
    for layer in range(spec.num_layers):
        for name, shape in {
            "attn_norm": (h,),
            "attn_q": (q, h),
            "attn_k": (kv, h),
            "attn_v": (kv, h),
            "attn_output": (h, q),
            "ffn_norm": (h,),
            "ffn_gate": (f, h),
            "ffn_up": (f, h),
            "ffn_down": (h, f),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    draws = {name: rng.normal(0.0, std, shape) for name, shape in shapes.items()}
    return {name: (w + (w.ndim == 1)).astype(np.float32) for name, w in draws.items()}


def storage_type(name: str, type_: TensorType) -> TensorType:
    """Norms are stored in float32, matrices in ``type_``."""
    return TensorType.F32 if "norm" in name else type_


def encode_weight(weight: npt.NDArray[np.float32], type_: TensorType) -> npt.NDArray[np.uint8]:
    """Bytes of a weight in a storage type, [rows, bytes] or [bytes]."""
    kind = gguf.GGMLQuantizationType(int(type_))
    encoded = np.ascontiguousarray(gguf.quants.quantize(weight, kind))
    return encoded.view(np.uint8)


def stored_weights(weights: Mapping[str, npt.NDArray[np.float32]], type_: TensorType) -> Weights:
    """What a file in ``type_`` really holds, decoded to float32 again: the reference of native tests."""
    out = {}
    for name, weight in weights.items():
        kept = storage_type(name, type_)
        kind = gguf.GGMLQuantizationType(int(kept))
        out[name] = np.asarray(gguf.quants.dequantize(encode_weight(weight, kept), kind), dtype=np.float32)
    return out


def make_tensors(weights: Mapping[str, npt.NDArray[np.float32]], type_: TensorType) -> dict[str, Tensor]:
    """The weights as a loader would hand them to a backend, by role, without a file."""
    tensors = {}
    for name, weight in weights.items():
        kept = storage_type(name, type_)
        data = encode_weight(weight, kept).reshape(-1)
        data.flags.writeable = False
        rows = weight.shape[0] if weight.ndim == 2 else 1
        tensors[role(name)] = Tensor(name, kept, rows, weight.shape[-1], data)
    return tensors


def write_gguf(
    path: Path,
    spec: ModelSpec,
    weights: Mapping[str, npt.NDArray[np.float32]],
    type_: TensorType = TensorType.F32,
    bos_id: int | None = None,
) -> Path:
    """Save a tiny model with the tiny tokenizer as GGUF. ``ValueError`` for another vocabulary."""
    if spec.vocab_size != len(vocabulary()):
        raise ValueError(f"the tiny tokenizer has {len(vocabulary())} tokens, the spec {spec.vocab_size}")
    writer = gguf.GGUFWriter(path, spec.architecture)
    writer.add_name(spec.name)
    writer.add_context_length(spec.context_length)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_epsilon)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_rope_dimension_count(spec.rotaries[0].dim)
    writer.add_vocab_size(spec.vocab_size)
    add_tokenizer(writer, bos_id)
    for name, weight in weights.items():
        kept = storage_type(name, type_)
        kind = gguf.GGMLQuantizationType(int(kept))
        data = weight if kept == TensorType.F32 else encode_weight(weight, kept)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, bos_id: int | None) -> None:
    """Write the tiny tokenizer's vocabulary, merges, specials and chat template."""
    tokens = vocabulary()
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if t in SPECIALS else normal for t in tokens])
    writer.add_token_merges([f"{a} {b}" for a, b in MERGES])
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(bos_id is not None)
    if bos_id is not None:
        writer.add_bos_token_id(bos_id)
    writer.add_chat_template(CHAT_TEMPLATE)
