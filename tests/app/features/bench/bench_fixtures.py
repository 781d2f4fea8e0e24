"""The Bench page over a scripted engine, with short runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytestqt.qtbot import QtBot

from app.features.bench.form import Mode
from app.features.bench.page import BenchPage
from app.link.bridge import EngineBridge
from app.main.application import Application
from app.storage.run_records import Kind, RunRecord
from tests.app.parts import Parts

WAIT_MS = 20_000
AMPLE = 60_000.0  # ms: a goal that all meet


@pytest.fixture
def page(qtbot: QtBot, parts: Parts) -> BenchPage:
    """Shown, without goals."""
    parts.show("bench")
    return shortened(qtbot, parts.bench)


def page_in_window(qtbot: QtBot, application: Application) -> BenchPage:
    application.window.show_widget(application.pages.bench)
    return shortened(qtbot, application.pages.bench)


def shortened(qtbot: QtBot, page: BenchPage) -> BenchPage:
    qtbot.waitUntil(page.isVisible)
    page.form.requests.setValue(4)
    page.form.rounds.setValue(1)
    page.form.warmups.setValue(0)
    return page


@pytest.fixture
def search(page: BenchPage) -> BenchPage:
    narrow(page)
    return page


def narrow(page: BenchPage) -> None:
    """A search of two settings of two values, with at most 5 runs."""
    form = page.form
    form.choose(Mode.TUNE)
    form.varied[0].line.setText("2, 3")
    form.varied[1].line.setText("64, 128")
    form.tune.trials.setValue(5)


def run(page: BenchPage, mode: Mode, ttft_ms: float) -> None:
    """Start it under a goal."""
    page.form.choose(mode)
    page.form.goal_fields.limits["ttft"].setValue(ttft_ms)
    page.form.press_run()


def sweep(page: BenchPage, name: str, values: str) -> None:
    box, line = page.form.axes[0]
    box.setCurrentIndex(box.findData(name))
    line.setText(values)
    page.form.press_run()


def wait_end(qtbot: QtBot, page: BenchPage) -> None:
    qtbot.waitUntil(lambda: not page.bench.is_running, timeout=WAIT_MS)


def wait_restored(qtbot: QtBot, bridge: EngineBridge, before: object) -> None:
    """The settings are those of the config `before`."""
    qtbot.waitUntil(lambda: bridge.config == before, timeout=WAIT_MS)


def kept(page: BenchPage, kind: Kind) -> list[RunRecord]:
    return [run for run in page._book.runs if run.kind is kind]


def config_of(bridge: EngineBridge) -> Callable[[str], object]:
    return lambda name: getattr(bridge.config, name)
