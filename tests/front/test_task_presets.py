"""Settings for a task, and warnings of settings that work against each other."""

from __future__ import annotations

from typing import Any

import pytest

from unspool.params import SamplingParams
from unspool.task_presets import TASK_PRESETS, warnings_of

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "factual": {"temperature": (0.0, 0.3), "top_p": (1.0, 1.0)},
    "extraction": {"temperature": (0.0, 0.0)},
    "code": {"temperature": (0.2, 0.2), "top_p": (0.95, 0.95)},
    "reasoning": {"temperature": (0.6, 0.7), "top_p": (0.95, 0.95)},
    "chat": {"temperature": (0.7, 1.0), "top_p": (0.9, 0.95)},
    "creative": {"temperature": (1.0, 1.3), "top_p": (0.95, 1.0), "min_p": (0.05, 0.05)},
    "brainstorm": {"temperature": (1.0, 1.2), "top_p": (0.98, 0.98)},
    "vote": {"temperature": (0.7, 0.7), "top_p": (0.95, 0.95)},
}
"""What the field recommends."""


def test_every_task_has_the_settings_that_the_field_recommends() -> None:
    assert list(TASK_PRESETS) == list(RANGES)
    for name, ranges in RANGES.items():
        preset = TASK_PRESETS[name]
        assert set(preset.settings) == set(ranges)
        for setting, (low, high) in ranges.items():
            assert low <= preset.settings[setting] <= high
        assert preset.why
        assert "\n" not in preset.why
        SamplingParams(preset=name)
        assert warnings_of(preset.settings) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 1.5, "top_p": 0.99}, ["temperature 1.5", "top_p 0.99", "no penalty"]),
        ({"temperature": 1.3}, ["temperature 1.3", "no truncation"]),
        ({"temperature": 0.3, "top_k": 10, "top_p": 0.7, "min_p": 0.2}, ["top_k, top_p, min_p", "moot"]),
        ({"repetition_penalty": 1.8}, ["repetition_penalty 1.8", "1.05 to 1.2"]),
        ({"repetition_penalty": 1.2, "frequency_penalty": 0.8, "presence_penalty": 0.8}, ["twice"]),
        ({"mirostat": 2, "top_k": 40}, ["mirostat with top_k"]),
    ],
)
def test_stacked_settings_are_warned_of_in_plain_words(settings: dict[str, Any], words: list[str]) -> None:
    (warning,) = warnings_of(settings)
    for word in words:
        assert word in warning


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": None, "top_p": None},
        {"temperature": 1.5, "min_p": 0.1},
        {"temperature": 1.5, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.99, "repetition_penalty": 1.1},
        {"temperature": 1.3, "top_n_sigma": 1.0},
        {"temperature": 0.0, "top_k": 10, "top_p": 0.7, "min_p": 0.2},
        {"temperature": 0.3, "top_k": 10},
        {"repetition_penalty": 1.2},
        {"frequency_penalty": 1.5},
        {"mirostat": 2, "temperature": 1.5},
    ],
)
def test_settings_that_go_together_are_not_warned_of(settings: dict[str, Any]) -> None:
    assert warnings_of(settings) == []
