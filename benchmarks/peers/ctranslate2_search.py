"""Beam search in CTranslate2, int8, on the weights of a GGUF file, dequantized and converted.

The interpreter needs ctranslate2, and torch, transformers, accelerate and gguf for the conversion.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-not-found,unused-ignore]
import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]
from ctranslate2.converters import (  # type: ignore[import-not-found,unused-ignore]
    TransformersConverter,
)

from benchmarks.peers.serve import Answer, Job, serve


def converted(path: Path, into: Path) -> tuple[str, list[str]]:
    """The model in CTranslate2's own format, int8, and its vocabulary in the order of ids."""
    asked = {"gguf_file": path.name, "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **asked)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if hasattr(model.config, "quantization_config"):  # which says where weights came from, and bars saving
        del model.config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(into / "transformers")
    tokenizer.save_pretrained(into / "transformers")
    TransformersConverter(str(into / "transformers")).convert(str(into / "int8"), quantization="int8")
    return str(into / "int8"), tokenizer.convert_ids_to_tokens(range(len(tokenizer)))


def start(job: Job) -> tuple[Answer, Any]:
    """Convert and load the model; answer with the version."""
    with tempfile.TemporaryDirectory() as folder:
        made, names = converted(Path(job["model"]), Path(folder))
        generator = ctranslate2.Generator(made, compute_type="int8", intra_threads=job["threads"])

    def respond(job: Job) -> Answer:
        prompt = [names[token] for token in job["prompt"]]
        begin = time.perf_counter()
        [result] = generator.generate_batch(
            [prompt],
            beam_size=job["width"],
            max_length=job["tokens"],
            min_length=job["tokens"],
            include_prompt_in_result=False,
        )
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": result.sequences_ids[0]}

    return {"version": ctranslate2.__version__}, respond


if __name__ == "__main__":
    serve(start)
