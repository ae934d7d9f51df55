"""A fresh process that loads a model and says what that took; ``benchmarks.startup`` runs it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def resident() -> dict[str, int]:
    """Bytes of this process's memory by kind: ``RssAnon`` is private, ``RssFile`` are mapped files' pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile")}


def main() -> None:
    """Load ``sys.argv[1]`` and generate a little; print JSON."""
    begin = time.perf_counter()
    import unspool

    imported = time.perf_counter()
    llm = unspool.LLM(sys.argv[1])
    loaded = time.perf_counter()
    after_load = resident()
    llm.generate("The", max_tokens=16, temperature=0.0, ignore_eos=True)
    answer = {
        "import_seconds": imported - begin,
        "load_seconds": loaded - imported,
        "after_load": after_load,
        "after_generate": resident(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
