"""A known engine for all tests of the settings."""

from __future__ import annotations

import dataclasses

import pytest

from engine.snapshot import EngineSnapshot
from tests.app.fakes import Script, snapshot_at_rest


@pytest.fixture(scope="module")
def idle() -> EngineSnapshot:
    """The snapshot of a loaded engine that does nothing, at time 1000."""
    return dataclasses.replace(snapshot_at_rest("/m", Script(load_step_s=0.0)), time=1000.0)
