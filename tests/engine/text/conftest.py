"""The processes that encode as they are in the program."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def kept_encoders() -> None:
    """None is kept."""
