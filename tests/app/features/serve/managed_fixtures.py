"""The Server page, and the scripted vLLM as an engine that it runs."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from pytestqt.qtbot import QtBot

from app.features.serve.page import OTHERS, ServerPage
from app.main.application import Application
from app.managed.launch import Launch
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.managed.conftest import engine_of as managed_engine
from tests.app.managed.conftest import make_environment
from tests.app.window_fixtures import application, script

__all__ = ["application", "ring", "script"]
WAIT_MS = 30_000


@pytest.fixture
def page(application: Application, ring: MemoryKeyring) -> ServerPage:
    page = application.pages.server
    application.window.show_widget(page)
    page.show_tab(OTHERS)
    return page


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(interpreter=str(make_environment(tmp_path / "venv")), model="/models/starter")


def run(qtbot: QtBot, page: ServerPage, launch: Launch) -> str:
    """Start an engine from its form, until the window uses it; its connection id."""
    panel = page.connections.launches
    page.run_with(launch.model)
    panel.form.show_launch("", launch)
    with qtbot.waitSignal(panel.started) as started:
        panel.start.click()
    known: str = started.args[0]
    qtbot.waitUntil(lambda: page.switch.used_id == known, timeout=WAIT_MS)
    return known


def engine_of(page: ServerPage, known: str) -> psutil.Process:
    """The engine's own process, below its supervisor."""
    return managed_engine(page.engines._processes[known])
