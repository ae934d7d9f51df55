"""What every test may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from unspool.model.registry import resolve


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched on first use; tests that ask for it are marked ``model``."""
    return resolve("smollm2")
