"""The peer's end of a measurement: jobs come in as lines of JSON, and answers go out as lines of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]
Answer = dict[str, Any]


def serve(start: Callable[[Job], tuple[Answer, Callable[[Job], Answer]]]) -> None:
    """Read one job that starts the engine, then answer one job a line until the input ends.

    start: takes the first job and returns its answer with the function that answers all others.
    Whatever the engine itself prints goes to standard error, so that the answers stay JSON.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        first, respond = start(json.loads(sys.stdin.readline()))
        say(first)
        for line in sys.stdin:
            say(respond(json.loads(line)))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        raise
