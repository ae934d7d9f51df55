"""Write llama_cpp.json.gz: what llama.cpp's samplers keep of rows, and with which probabilities.

Run with a Python that has llama-cpp-python and NumPy (nothing else is needed):

    python tests/golden/make_llama_cpp_golden.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

The model is there for its vocabulary, in which DRY looks up its sequence breakers. Probabilities are the
softmax, in double precision, of the logits that the samplers leave, to eight decimals.
"""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]
import numpy as np
from llama_cpp_cases import ALPHABET, BREAKERS, Case, Sampler, cases  # type: ignore[import-not-found,unused-ignore]

SEED = 4242
LARGEST_ROW = 200


class Vocabulary:
    """A model's vocabulary, and DRY's breakers in it."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.handle = llama_cpp.llama_model_get_vocab(self.model)

    def text(self, token: int) -> str:
        room = ctypes.create_string_buffer(64)
        length = llama_cpp.llama_token_to_piece(self.handle, token, room, 64, 0, True)
        return room.raw[: max(length, 0)].decode("utf-8", "replace")

    def ids(self, text: str) -> list[int]:
        room = (llama_cpp.llama_token * 32)()
        data = text.encode()
        count = llama_cpp.llama_tokenize(self.handle, data, len(data), room, 32, False, False)
        return list(room[:count])

    def breakers(self, size: int) -> list[list[int]]:
        """Each breaker as tokens: one that holds it whole, or one that ends in its beginning and the rest."""
        found: list[list[int]] = []
        for token in range(size):
            word = self.text(token)
            for breaker in BREAKERS:
                if breaker in word:
                    found.append([token])
                    continue
                for cut in range(1, len(breaker)):
                    if word.endswith(breaker[:cut]):
                        found.append([token, *self.ids(breaker[cut:])])
        return [list(tokens) for tokens in dict.fromkeys(map(tuple, found))]


def made(sampler: Sampler, size: int, vocabulary: Vocabulary) -> Any:
    name, values = sampler
    init = getattr(llama_cpp, f"llama_sampler_init_{name}")
    if name == "logit_bias":
        (biases,) = values
        return init(size, len(biases), (llama_cpp.llama_logit_bias * len(biases))(*biases))
    if name == "dry":
        strings = (ctypes.c_char_p * len(BREAKERS))(*(breaker.encode() for breaker in BREAKERS))
        return init(vocabulary.handle, *values, strings, len(BREAKERS))
    least, seed = (1,), (SEED,)
    before = {"penalties": (size,), "mirostat": (size, SEED), "mirostat_v2": seed}.get(name, ())
    behind = {"top_p": least, "min_p": least, "typical": least, "xtc": least + seed, "adaptive_p": seed}
    return init(*before, *values, *behind.get(name, ()))


def run(case: Case, vocabulary: Vocabulary, alphabet: list[int]) -> list[dict[str, Any]]:
    """For each row the kept ids and their probabilities, and the token drawn where a sampler draws."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in case.samplers:
        llama_cpp.llama_sampler_chain_add(chain, made(sampler, case.size, vocabulary))
    for token in case.history(alphabet):
        llama_cpp.llama_sampler_accept(chain, token)
    results = []
    for row in case.logits():
        data = (llama_cpp.llama_token_data * case.size)()
        for token in range(case.size):
            data[token].id, data[token].logit, data[token].p = token, float(row[token]), 0.0
        candidates = llama_cpp.llama_token_data_array(data, case.size, -1, False)
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(candidates))
        left = sorted(
            (candidates.data[i].id, candidates.data[i].logit)
            for i in range(candidates.size)
            if candidates.data[i].logit > -np.inf
        )
        z = np.array([logit for _, logit in left], np.float64)
        p = np.exp(z - z.max())
        result: dict[str, Any] = {
            "ids": [token for token, _ in left],
            "probabilities": [round(float(x), 8) for x in p / p.sum()],
        }
        if candidates.selected >= 0:
            result["token"] = candidates.data[candidates.selected].id
            llama_cpp.llama_sampler_accept(chain, result["token"])
        results.append(result)
    llama_cpp.llama_sampler_free(chain)
    return results


def main() -> None:
    path = Path(sys.argv[1])
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    vocabulary = Vocabulary(path)
    breakers = vocabulary.breakers(LARGEST_ROW)
    pair = next(tokens for tokens in breakers if len(tokens) == 2)
    newline = next(tokens[0] for tokens in breakers if len(tokens) == 1)
    usual = [token for token in range(20, 60) if [token] not in breakers][: ALPHABET - 3]
    alphabet = [*usual, newline, *pair]
    golden = {
        "made_with": {
            "llama_cpp_python": llama_cpp.__version__,
            "python": sys.version.split()[0],
            "model": path.name,
            "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        },
        "breakers": breakers,
        "alphabet": alphabet,
        "cases": {case.name: run(case, vocabulary, alphabet) for case in cases()},
    }
    packed = json.dumps(golden, separators=(",", ":")).encode()
    out = Path(__file__).with_name("llama_cpp.json.gz")
    out.write_bytes(gzip.compress(packed, 9, mtime=0))
    print(f"{out}: {out.stat().st_size} bytes, {len(golden['cases'])} cases, alphabet {alphabet}")


if __name__ == "__main__":
    main()
