"""How far an engine's rows are from float32 on the same weights, on human text.

    python -m benchmarks.accuracy --text TEXT --transformers-python PEER/bin/python \\
        --llama-cpp-python PEER/bin/python

The text is cut into token ids once, by unspool, and every engine computes the same windows of them. The
reference is Transformers in float32 on the file's weights, dequantized, which it checks bit for bit first.
unspool computes them with every type of its cache; it is named alone with its default, float16. Logits go
through memory-mapped files in a temporary folder: about 400 MB for each at the default size.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.markdown import table
from benchmarks.peer import Peer
from unspool import LLM
from unspool.backend.threads import default_threads
from unspool.cache.size import CACHE_TYPES
from unspool.model.registry import resolve

Logits = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
REFERENCE = "float32 reference"


@dataclass(frozen=True)
class Positions:
    """What an engine does at each position, windows one after another."""

    divergence: Float64Array
    """[N] KL(reference || engine) in nats."""
    agrees: npt.NDArray[np.bool_]
    """[N] whether both have the same most probable token."""
    surprise: Float64Array
    """[N - windows] -log p of the token that follows in the text, where the window has one."""

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise."""
        return math.exp(float(self.surprise.mean()))


def log_softmax(rows: Logits) -> Float64Array:
    """Log-probabilities of rows of logits, in float64."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def compare(reference: Logits, engine: Logits, windows: list[list[int]], rows: int = 64) -> Positions:
    """Both engines' [windows, length, vocab] logits, ``rows`` positions at a time."""
    divergence, agrees, surprise = [], [], []
    for w, ids in enumerate(windows):
        for first in range(0, len(ids), rows):
            p = log_softmax(reference[w, first : first + rows])
            q = log_softmax(engine[w, first : first + rows])
            divergence.append((np.exp(p) * (p - q)).sum(axis=1))
            agrees.append(p.argmax(axis=1) == q.argmax(axis=1))
            following = np.array(ids[first + 1 : first + 1 + rows])
            surprise.append(-q[np.arange(len(following)), following])
    return Positions(np.concatenate(divergence), np.concatenate(agrees), np.concatenate(surprise))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95% confidence interval of a proportion (Wilson 1927)."""
    z, share = 1.96, successes / trials
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (middle - half) / (1 + z * z / trials), (middle + half) / (1 + z * z / trials)


def paired_difference(ours: Positions, theirs: Positions) -> tuple[float, float]:
    """Difference of top-1 agreement at the same positions, and half of its 95% confidence interval."""
    difference = ours.agrees.astype(np.float64) - theirs.agrees
    return float(difference.mean()), 1.96 * float(difference.std(ddof=1)) / math.sqrt(len(difference))


def windows_of(ids: list[int], count: int, length: int) -> list[list[int]]:
    """``count`` windows spread evenly over a text. Raises ``ValueError`` if it is too short for them."""
    if len(ids) < count * length:
        raise ValueError(f"the text has {len(ids)} tokens; {count} windows of {length} need {count * length}")
    stride = len(ids) // count
    return [ids[i * stride : i * stride + length] for i in range(count)]


def write_logits(llm: LLM, windows: list[list[int]], out: Path) -> None:
    """unspool's rows of every window."""
    shape = (len(windows), len(windows[0]), llm.spec.vocab_size)
    rows = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=shape)
    for window, ids in zip(rows, windows, strict=True):
        window[:] = llm.logits(ids)
    rows.flush()


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Positions]:
    """Every engine's positions, by name, the reference with itself first."""
    path = resolve(arguments.model)
    threads = arguments.threads or default_threads()
    start = {"model": str(path), "threads": threads}
    files: dict[str, Path] = {}
    for cache_type in CACHE_TYPES:
        name = "unspool" if cache_type == "float16" else f"unspool, {cache_type} cache"
        files[name] = folder / f"{cache_type}.npy"
        cache_tokens = max(arguments.length, 512)
        with LLM(path, threads=threads, cache_tokens=cache_tokens, cache_type=cache_type) as llm:
            ids = llm.tokenizer.encode(arguments.text.read_text(encoding="utf-8"))
            windows = windows_of(ids, arguments.windows, arguments.length)
            write_logits(llm, windows, files[name])
    reference = folder / "reference.npy"
    with Peer("transformers_reference", arguments.transformers_python, start) as peer:
        print(f"reference: {peer.started['tensors']} tensors are the file's, bit for bit", file=sys.stderr)
        peer.ask({"windows": windows, "out": str(reference)})
    if arguments.llama_cpp_python is not None:
        with Peer("llama_cpp", arguments.llama_cpp_python, start) as peer:
            for name, one_by_one in (("llama.cpp, whole windows", False), ("llama.cpp, one by one", True)):
                files[name] = folder / f"llama-{int(one_by_one)}.npy"
                peer.ask({"windows": windows, "out": str(files[name]), "one_by_one": one_by_one})
    expected = np.load(reference, mmap_mode="r")
    made = {REFERENCE: compare(expected, expected, windows)}
    for name, file in files.items():
        made[name] = compare(expected, np.load(file, mmap_mode="r"), windows)
    return made


def figures(made: dict[str, Positions]) -> dict[str, dict[str, Any]]:
    """Each engine's figures, and its difference from unspool where it has one."""
    out: dict[str, dict[str, Any]] = {}
    for name, positions in made.items():
        count = len(positions.agrees)
        low, high = wilson_interval(int(positions.agrees.sum()), count)
        out[name] = {
            "positions": count,
            "mean_kl": float(positions.divergence.mean()),
            "mean_kl_half_interval": 1.96 * float(positions.divergence.std(ddof=1)) / math.sqrt(count),
            "median_kl": float(np.median(positions.divergence)),
            "top1": float(positions.agrees.mean()),
            "top1_interval": [low, high],
            "perplexity": positions.perplexity,
        }
        if name not in (REFERENCE, "unspool"):
            out[name]["unspool_top1_minus_this"] = paired_difference(made["unspool"], positions)
    return out


def report(engines: dict[str, dict[str, Any]]) -> str:
    """The figures as Markdown."""
    rows, notes = [], []
    for name, f in engines.items():
        low, high = f["top1_interval"]
        row = [name, "", "", f"{f['perplexity']:.3f}"]
        if name != REFERENCE:
            row[1] = f"{f['mean_kl']:.5f} ± {f['mean_kl_half_interval']:.5f}"
            row[2] = f"{100 * f['top1']:.2f}% ({100 * low:.2f}-{100 * high:.2f})"
        rows.append(row)
        if "unspool_top1_minus_this" in f:
            difference, half = f["unspool_top1_minus_this"]
            notes.append(
                f"Top-1 agreement of unspool less that of {name}: "
                f"{100 * difference:+.2f} ± {100 * half:.2f} percentage points (paired)."
            )
    header = [f"{engines[REFERENCE]['positions']:,} positions", "mean KL", "top-1 agreement", "perplexity"]
    return "\n\n".join([table(header, rows), *notes])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", type=Path, required=True, help="a file of human text, UTF-8")
    parser.add_argument(
        "--transformers-python",
        type=Path,
        required=True,
        help="an interpreter that has torch, transformers, accelerate and gguf",
    )
    parser.add_argument("--llama-cpp-python", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--model", default="smollm2", help="an alias or a .gguf file (default: smollm2)")
    parser.add_argument("--windows", type=int, default=8, help="how many windows of the text (default: 8)")
    parser.add_argument("--length", type=int, default=256, help="tokens of a window, at most 512")
    parser.add_argument("--threads", type=int, help="of every engine (default: physical cores to use)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.windows < 1 or not 2 <= arguments.length <= 512:
        parser.error("--windows must be at least 1, and --length from 2 to 512")
    return arguments


def main() -> None:
    """Measure, and print Markdown."""
    arguments = parse_arguments()
    if arguments.llama_cpp_python is None:
        print("skipped: no --llama-cpp-python given", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        engines = figures(measure(arguments, Path(folder)))
    if arguments.json:
        arguments.json.write_text(json.dumps(engines, indent=1) + "\n")
    print(report(engines))


if __name__ == "__main__":
    main()
