"""What every test may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from unspool.model.registry import resolve

settings.register_profile("unspool", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("unspool")


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched on first use; tests that ask for it are marked ``model``."""
    return resolve("smollm2")
