"""What a state of the engine that says nothing new costs the window: nothing of it is laid out or
painted again."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.features.inspect.what_if_table import WhatIfTable
from app.features.tune.setting_list import SettingList
from app.main.application import Application
from app.window.docks import DockArea
from engine.snapshot import EngineSnapshot
from tests.app.window_fixtures import application, ask, script, wait_idle
from widgets.plot.parts_bar import PartsBar
from widgets.requests.panel import RequestTable

__all__ = ["application", "script"]  # fixtures

OPENS = "/models/tiny"
STILL_MS = 50
STILL = (PartsBar, WhatIfTable, SettingList, RequestTable)
"""Panels that change with what is told alone, not with the time."""


class Watch(QObject):
    """Counts paintings of `STILL`, and new layouts of the docks, in the whole program."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint and isinstance(watched, QWidget):
            for kind in STILL:
                if isinstance(watched, kind) or isinstance(watched.parent(), kind):
                    self.counts[kind.__name__] += 1
        if event.type() == QEvent.Type.LayoutRequest and isinstance(watched, DockArea):
            self.counts["layout"] += 1
        return False


@pytest.fixture
def shown(qtbot: QtBot, application: Application) -> EngineSnapshot:
    """What was told last, when everything came to rest, without its news, and all docks of the
    window are seen."""
    snapshots: list[EngineSnapshot] = []
    application.bridge.snapshot.connect(snapshots.append)
    for dock, _ in application.window.dock_shortcuts:
        dock.setFloating(True)
        dock.resize(640, 480)
        dock.show()
    ask(application, "hello")
    wait_idle(qtbot, application)
    dispatcher = application.bridge.dispatcher
    rests = lambda: bool(snapshots) and not snapshots[-1].requests and dispatcher.is_at_rest
    qtbot.waitUntil(rests)
    return dataclasses.replace(snapshots[-1], steps=(), ttft=(), itl=())


def test_a_state_that_says_nothing_new_paints_and_lays_out_nothing(
    qtbot: QtBot, qapp: QApplication, application: Application, shown: EngineSnapshot
) -> None:
    watch = Watch()

    def is_still() -> bool:
        """Whether five of them pass unseen; a panel may still be coming to rest at first."""
        watch.counts.clear()
        for _ in range(5):
            application.bridge.take_snapshot(shown)
            qtbot.wait(5)
        return not watch.counts

    qapp.installEventFilter(watch)
    try:
        qtbot.waitUntil(is_still)
    finally:
        qapp.removeEventFilter(watch)


def test_one_that_says_something_new_is_painted(
    qtbot: QtBot, qapp: QApplication, application: Application, shown: EngineSnapshot
) -> None:
    memory = dataclasses.replace(shown.memory, free=shown.memory.free // 2)
    watch = Watch()
    qapp.installEventFilter(watch)
    try:
        application.bridge.take_snapshot(dataclasses.replace(shown, memory=memory))
        qtbot.waitUntil(lambda: watch.counts["PartsBar"] > 0)
    finally:
        qapp.removeEventFilter(watch)


@pytest.mark.slow
def test_no_page_asks_for_a_layout_while_nothing_changes(
    qtbot: QtBot, qapp: QApplication, application: Application
) -> None:
    """A page that sets a margin or a spacing whenever it is laid out is laid out without end."""
    requests: list[QObject] = []

    class Requests(QObject):
        def eventFilter(self, watched: QObject, event: QEvent) -> bool:
            if event.type() == QEvent.Type.LayoutRequest:
                requests.append(watched)
            return False

    def is_still() -> bool:
        requests.clear()
        qtbot.wait(STILL_MS)
        return not requests

    watch = Requests()
    qapp.installEventFilter(watch)
    try:
        for index in range(len(application.window.pages)):
            application.window.show_page(index)
            qtbot.waitUntil(is_still)
    finally:
        qapp.removeEventFilter(watch)
