"""Settings that the field recommends for a task, and warnings of settings that work against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskPreset:
    """What to set for a task, and why."""

    settings: Mapping[str, float]
    """By the names of ``SamplingParams``."""
    why: str
    """One line: what the settings do for the task."""


TASK_PRESETS: dict[str, TaskPreset] = {
    "factual": TaskPreset(
        {"temperature": 0.2, "top_p": 1.0},
        "Answers that should be right: close to the most probable, and nothing is cut off.",
    ),
    "extraction": TaskPreset(
        {"temperature": 0.0},
        "Names, dates and fields out of a text: there is one right answer, so no chance.",
    ),
    "code": TaskPreset(
        {"temperature": 0.2, "top_p": 0.95},
        "Programs: one wrong token breaks them, but a little chance leaves a dead end.",
    ),
    "reasoning": TaskPreset(
        {"temperature": 0.6, "top_p": 0.95},
        "Thinking step by step: greedy text tends to loop, and a cut tail keeps steps sound.",
    ),
    "chat": TaskPreset(
        {"temperature": 0.8, "top_p": 0.95},
        "Conversation: varied, and seldom strange.",
    ),
    "creative": TaskPreset(
        {"temperature": 1.1, "top_p": 0.98, "min_p": 0.05},
        "Stories: the flatter law surprises, and min-p keeps out what would break a sentence.",
    ),
    "brainstorm": TaskPreset(
        {"temperature": 1.1, "top_p": 0.98},
        "Many different ideas, of which the weak are thrown away.",
    ),
    "vote": TaskPreset(
        {"temperature": 0.7, "top_p": 0.95},
        "Several answers of which the commonest wins: different ways, each still sound.",
    ),
}
"""By the task's name."""


def warnings_of(settings: Mapping[str, Any]) -> list[str]:
    """What is likely not meant in settings by the names of ``SamplingParams``, in plain words."""
    return [
        warning
        for check in (_hot, _tight, _repetition, _penalties, _mirostat)
        if (warning := check(settings))
    ]


TRUNCATIONS: dict[str, float] = {
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_a": 0,
    "tail_free": 1,
    "p_less": 0,
}
"""Rules that cut a law's tail, and the value at which each is off; ``None`` is off too."""
CUTS_WHEN_SET = ("top_h", "top_n_sigma")
"""Those that are off at ``None`` alone."""


def _value(settings: Mapping[str, Any], name: str, missing: float) -> float:
    value = settings.get(name)
    return missing if value is None else float(value)


def _cuts(settings: Mapping[str, Any]) -> list[str]:
    """The truncations that are on."""
    on = [name for name, off in TRUNCATIONS.items() if _value(settings, name, off) != off]
    return on + [name for name in CUTS_WHEN_SET if settings.get(name) is not None]


def _penalized(settings: Mapping[str, Any]) -> bool:
    return (
        _value(settings, "repetition_penalty", 1) > 1
        or any(
            _value(settings, name, 0) > 0
            for name in ("frequency_penalty", "presence_penalty", "dry_multiplier")
        )
        or bool(settings.get("no_repeat_ngram_size"))
    )


def _hot(settings: Mapping[str, Any]) -> str | None:
    """A flat law of which hardly anything is cut: most of the mass is in tokens that fit nowhere."""
    temperature = _value(settings, "temperature", 1)
    cuts = _cuts(settings)
    if _value(settings, "mirostat", 0) or settings.get("adaptive_target") is not None:
        return None
    if temperature > 1.2 and not cuts:
        return (
            f"temperature {temperature:g} with no truncation: the tail of improbable tokens gets much of the "
            "mass; add min_p (0.05 to 0.1) or top_p"
        )
    nearly_all = cuts == ["top_p"] and _value(settings, "top_p", 1) >= 0.99
    if temperature >= 1.5 and nearly_all and not _penalized(settings):
        return (
            f"temperature {temperature:g} with top_p {_value(settings, 'top_p', 1):g} and no penalty: the "
            "text is likely to fall apart; lower one of them, or add min_p (0.05 to 0.1)"
        )
    return None


def _tight(settings: Mapping[str, Any]) -> str | None:
    """Several cuts, each of which would do, of a law that is sharp already."""
    temperature = _value(settings, "temperature", 1)
    tight = [
        name
        for name, is_tight in (
            ("top_k", 0 < _value(settings, "top_k", 0) <= 20),
            ("top_p", _value(settings, "top_p", 1) <= 0.8),
            ("min_p", _value(settings, "min_p", 0) >= 0.1),
        )
        if is_tight
    ]
    if 0 < temperature <= 0.5 and len(tight) == 3:
        return (
            f"temperature {temperature:g} with tight {', '.join(tight)}: almost always greedy, and the one "
            "that cuts most makes the others moot; keep one of them, or set temperature to 0"
        )
    return None


def _repetition(settings: Mapping[str, Any]) -> str | None:
    """It divides logits: beyond some strength common words and punctuation run out."""
    penalty = _value(settings, "repetition_penalty", 1)
    if penalty > 1.5:
        return (
            f"repetition_penalty {penalty:g}: words such as 'the', and full stops, are all but forbidden "
            "once used; 1.05 to 1.2 is usual"
        )
    return None


def _penalties(settings: Mapping[str, Any]) -> str | None:
    """Penalties of the same tokens add up."""
    subtracted = max(0.0, _value(settings, "frequency_penalty", 0)) + max(
        0.0, _value(settings, "presence_penalty", 0)
    )
    penalty = _value(settings, "repetition_penalty", 1)
    if penalty > 1.1 and subtracted > 1:
        return (
            f"repetition_penalty {penalty:g} and frequency and presence penalties of {subtracted:g}: they "
            "punish the same tokens twice; choose one kind"
        )
    return None


def _mirostat(settings: Mapping[str, Any]) -> str | None:
    """It can only reach its surprise if the tokens that have it are left."""
    cuts = _cuts(settings)
    if _value(settings, "mirostat", 0) and cuts:
        return (
            f"mirostat with {', '.join(cuts)}: what they cut keeps mirostat from its surprise; leave them off"
        )
    return None
