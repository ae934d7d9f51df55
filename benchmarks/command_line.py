"""The options that benchmarks beside peers have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

PEERS = ("llama_cpp", "openvino")
"""The peers of most benchmarks, as options name them."""
PACKAGES = {
    "llama_cpp": "llama-cpp-python",
    "openvino": "openvino-genai",
    "transformers": "torch, transformers, accelerate and gguf",
    "ctranslate2": "ctranslate2 and what --transformers-python has",
}


def parser_of(program: str, description: str | None, peers: Sequence[str] = PEERS) -> argparse.ArgumentParser:
    """A parser with the model, the peers' interpreters and the file for every figure."""
    parser = argparse.ArgumentParser(
        f"python -m benchmarks.{program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="an alias or a .gguf file (default: smollm2)")
    for peer in peers:
        option = f"--{peer.replace('_', '-')}-python"
        parser.add_argument(option, type=Path, help=f"an interpreter that has {PACKAGES[peer]}")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser


def say_what_is_skipped(arguments: argparse.Namespace, peers: Sequence[str] = PEERS) -> None:
    """One line on standard error for each peer that is not given."""
    for peer in peers:
        if getattr(arguments, f"{peer}_python") is None:
            print(f"skipped: no --{peer.replace('_', '-')}-python given", file=sys.stderr)
