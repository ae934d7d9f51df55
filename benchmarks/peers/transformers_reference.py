"""The reference of accuracy: Transformers in float32 on the weights of a GGUF file, dequantized.

Before anything is computed, every weight that Transformers made of the file is compared, bit for bit, with
the ``gguf`` package's own dequantization, rows of the query and key projections in the order that
Transformers' rotary embedding has them. The interpreter needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.serve import Answer, Job, serve

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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
"""Tensors of the Llama family: the file's names to Transformers'."""


def their_name(name: str) -> str:
    """``blk.3.attn_q.weight`` as ``model.layers.3.self_attn.q_proj.weight``."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{NAMES[parts[0]]}.{parts[1]}"


def halves_of_pairs(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from (x0, y0, x1, y1, ...), as the file has them, to (x0, x1, ..., y0, y1, ...)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def check_weights(model: Any, path: Path) -> int:
    """How many tensors were compared. Raises ``ValueError`` for one that is not the file's."""
    made = {name: value.numpy() for name, value in model.state_dict().items()}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    left = set(made)
    for tensor in gguf.GGUFReader(path).tensors:
        kind = tensor.name.split(".")[-2]
        if kind not in NAMES:
            raise ValueError(f"{tensor.name} is no tensor of the Llama family")
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            weight = halves_of_pairs(weight, heads[kind])
        name = their_name(tensor.name)
        if not np.array_equal(made[name], weight):
            raise ValueError(f"{name} is not what the file's {tensor.name} is, dequantized")
        left.discard(name)
    if left - {"lm_head.weight"}:
        raise ValueError(f"not from the file: {', '.join(sorted(left))}")
    if "lm_head.weight" in left and not np.array_equal(
        made["lm_head.weight"], made["model.embed_tokens.weight"]
    ):
        raise ValueError("the head is neither in the file nor the embedding")
    return len(made)


def write_logits(model: Any, job: Job) -> None:
    """Every row of every window into the job's .npy file."""
    windows = np.array(job["windows"], np.int64)
    out = np.lib.format.open_memmap(
        job["out"], mode="w+", dtype=np.float32, shape=(*windows.shape, model.config.vocab_size)
    )
    with torch.inference_mode():
        for window, ids in zip(out, windows, strict=True):
            window[:] = model(torch.from_numpy(ids[None]), use_cache=False).logits[0].numpy()
    out.flush()


def start(job: Job) -> tuple[Answer, Any]:
    """Load and check the model; answer with how many tensors were compared."""
    torch.set_num_threads(job["threads"])
    path = Path(job["model"])
    begin = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    seconds = time.perf_counter() - begin
    compared = check_weights(model, path)

    def respond(job: Job) -> Answer:
        write_logits(model, job)
        return {}

    return {"version": transformers.__version__, "load_seconds": seconds, "tensors": compared}, respond


if __name__ == "__main__":
    serve(start)
