"""Beam search in Transformers, float32, on the weights of a GGUF file, dequantized."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.serve import Answer, Job, serve


def start(job: Job) -> tuple[Answer, Any]:
    """Load the model; answer with the version."""
    path = Path(job["model"])
    torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()

    def respond(job: Job) -> Answer:
        ids = torch.tensor([job["prompt"]])
        begin = time.perf_counter()
        with torch.inference_mode():
            made = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=job["width"],
                max_new_tokens=job["tokens"],
                min_new_tokens=job["tokens"],
                do_sample=False,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": made[0, len(job["prompt"]) :].tolist()}

    return {"version": transformers.__version__}, respond


if __name__ == "__main__":
    serve(start)
