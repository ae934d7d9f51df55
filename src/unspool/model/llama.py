"""The Llama family in GGUF files: metadata to a ModelSpec, tensors to their roles.

Decoder-only, RMS norms before attention and feed-forward, rotary embedding on interleaved pairs
(2i, 2i + 1), grouped-query attention, SwiGLU, no biases. Whatever a file states beyond that is refused by
name rather than left out of the computation.

Sources: Touvron et al. 2023, https://arxiv.org/abs/2302.13971; tensor names as llama.cpp writes them.
"""

from __future__ import annotations

from unspool.errors import ModelFileError
from unspool.model.gguf import GgufFile
from unspool.model.metadata import Metadata
from unspool.model.spec import ModelSpec, Rotary, inverse_frequencies
from unspool.model.tensor import Tensor

_LAYER_ROLES = {
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

_USED_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "vocab_size",
}

_NEUTRAL_KEYS = {
    "attention.value_length": None,  # checked against the head's size
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.finetuned": False,
    "rope.scale_linear": 1.0,
    "tensor_data_layout": "Meta AI original pth",
}
"""Keys that are accepted with the one value that changes nothing."""

_REFUSED = {
    "expert": "a mixture of experts",
    "rope.scaling": "rotary scaling",
    "rope.scale": "rotary scaling",
    "attention.sliding_window": "sliding-window attention",
    "attention.causal": "bidirectional attention",
}
"""What the start of a refused key stands for."""

_SUPPORTED = (
    "Llama models with dense layers, full attention, unscaled rotary embedding and no biases are supported"
)


def read_spec(file: GgufFile) -> ModelSpec:
    """The model's sizes, each checked against the shapes of the tensors.

    Raises ``ModelFileError`` for a value that is missing, out of range, at odds with a tensor, or that asks
    for something that the family does not compute.
    """
    metadata = Metadata(file.metadata)
    _refuse_unknown_keys(metadata)
    embedding = _tensor(file, "token_embd.weight")
    hidden, heads = embedding.columns, metadata.integer("llama.attention.head_count", least=1, most=1 << 16)
    head_dim = metadata.integer("llama.attention.key_length", max(hidden // heads, 1), least=1, most=1 << 16)
    spec = ModelSpec(
        architecture="llama",
        name=metadata.text("general.name", file.path.stem),
        vocab_size=embedding.rows,
        hidden_size=metadata.integer("llama.embedding_length", least=1),
        intermediate_size=metadata.integer("llama.feed_forward_length", least=1),
        num_layers=metadata.integer("llama.block_count", least=1, most=1 << 12),
        num_heads=heads,
        num_kv_heads=metadata.integer("llama.attention.head_count_kv", heads, least=1, most=heads),
        head_dim=head_dim,
        context_length=metadata.integer("llama.context_length", least=1),
        norm_epsilon=metadata.number("llama.attention.layer_norm_rms_epsilon"),
        tied_embeddings="output.weight" not in file.tensors,
        rotaries=(_rotary(metadata, head_dim),),
    )
    _check_heads(metadata, spec)
    _check_shapes(file, spec)
    return spec


def _rotary(metadata: Metadata, head_dim: int) -> Rotary:
    dim = metadata.integer("llama.rope.dimension_count", head_dim, least=2, most=head_dim)
    if dim % 2:
        raise ModelFileError(f"llama.rope.dimension_count is {dim}; an even number is needed")
    theta = metadata.number("llama.rope.freq_base", 10000.0)
    return Rotary("interleaved", inverse_frequencies(dim, theta))


def tensors_by_role(file: GgufFile, spec: ModelSpec) -> dict[str, Tensor]:
    """``embedding``, ``final_norm``, ``head`` (absent when tied) and ``layers.{i}.{role}``."""
    return {role: _tensor(file, name) for role, name in _names(spec).items()}


def _names(spec: ModelSpec) -> dict[str, str]:
    """Role to the tensor's name in the file."""
    names = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight"}
    if not spec.tied_embeddings:
        names["head"] = "output.weight"
    for layer in range(spec.num_layers):
        for name, role in _LAYER_ROLES.items():
            names[f"layers.{layer}.{role}"] = f"blk.{layer}.{name}.weight"
    return names


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """The last part of a role to the (rows, columns) that the spec asks of it."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "embedding": (spec.vocab_size, hidden),
        "head": (spec.vocab_size, hidden),
        "final_norm": (1, hidden),
        "attention_norm": (1, hidden),
        "query": (queries, hidden),
        "key": (keys, hidden),
        "value": (keys, hidden),
        "output": (hidden, queries),
        "feed_forward_norm": (1, hidden),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }


def _tensor(file: GgufFile, name: str) -> Tensor:
    if name not in file.tensors:
        raise ModelFileError(f"{file.path}: the tensor {name!r} is missing; {_SUPPORTED}")
    return file.tensors[name]


def _refuse_unknown_keys(metadata: Metadata) -> None:
    for key in metadata:
        short = key.removeprefix("llama.")
        if short == key or short in _USED_KEYS or short == "rope.scaling.original_context_length":
            continue
        neutral = _NEUTRAL_KEYS.get(short, key)
        if neutral is None or (short in _NEUTRAL_KEYS and metadata[key] == neutral):
            continue
        what = next(
            (name for start, name in _REFUSED.items() if short.startswith(start)), "an unknown setting"
        )
        raise ModelFileError(f"{key} = {metadata[key]!r} asks for {what}; {_SUPPORTED}")


def _check_heads(metadata: Metadata, spec: ModelSpec) -> None:
    value_dim = metadata.integer("llama.attention.value_length", spec.head_dim)
    if value_dim != spec.head_dim:
        raise ModelFileError(
            f"heads have keys of {spec.head_dim} and values of {value_dim}; they must be equal"
        )
    if spec.head_dim % 16:
        raise ModelFileError(f"the head size is {spec.head_dim}; a multiple of 16 is supported")
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(
            f"{spec.num_heads} query heads cannot share {spec.num_kv_heads} key-value heads evenly"
        )
    vocab = metadata.integer("llama.vocab_size", spec.vocab_size)
    if vocab != spec.vocab_size:
        raise ModelFileError(f"llama.vocab_size is {vocab} and the embedding has {spec.vocab_size} rows")


def _check_shapes(file: GgufFile, spec: ModelSpec) -> None:
    """Every tensor is where and as large as the spec says, and none is left over."""
    names, shapes = _names(spec), _shapes(spec)
    for role, name in names.items():
        tensor, shape = _tensor(file, name), shapes[role.rpartition(".")[2]]
        if (tensor.rows, tensor.columns) != shape:
            raise ModelFileError(
                f"{file.path}: the tensor {name!r} has {tensor.rows} rows of {tensor.columns}, and the "
                f"metadata ask for {shape[0]} rows of {shape[1]}; the file is damaged"
            )
    unused = sorted(set(file.tensors) - set(names.values()))
    if unused:
        what = "scaled rotary embedding" if "rope_freqs.weight" in unused else "a part that is not computed"
        what = "biases" if unused[0].endswith(".bias") else what
        what = "a mixture of experts" if any("_exps" in name for name in unused) else what
        raise ModelFileError(f"{file.path}: the tensor {unused[0]!r} belongs to {what}; {_SUPPORTED}")
