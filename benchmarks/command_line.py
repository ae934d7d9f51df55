"""The options that benchmarks beside peers have in common."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the model, the peers' interpreters and the file for every figure."""
    parser = argparse.ArgumentParser(
        f"python -m benchmarks.{program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="an alias or a .gguf file (default: smollm2)")
    parser.add_argument("--llama-cpp-python", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--openvino-python", type=Path, help="an interpreter that has openvino-genai")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser


def say_what_is_skipped(arguments: argparse.Namespace) -> None:
    """One line on standard error for each peer that is not given."""
    for option in ("llama_cpp_python", "openvino_python"):
        if getattr(arguments, option) is None:
            print(f"skipped: no --{option.replace('_', '-')} given", file=sys.stderr)
