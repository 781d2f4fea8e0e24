"""Keys in the real window: Qt runs neither of two shortcuts with the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QShortcut
from PySide6.QtWidgets import QAbstractButton, QApplication, QInputDialog, QMenu, QWidget
from pytestqt.qtbot import QtBot

from app.features.compare.broadcast_view import BroadcastView
from app.features.compare.replies import Stage
from app.features.runs.forms import FORMS
from app.main.application import Application
from app.storage.run_records import Kind
from tests.app.fakes import Script
from tests.app.window_fixtures import application, ask, open_model, script, send, wait_idle
from widgets.plot.painted import NONE

__all__ = ["application", "script"]

ALONE = Qt.ShortcutContext.WidgetShortcut


class Bound(NamedTuple):
    """Keys that act where `place` has the focus, or below it; `is_alone`: in no child."""

    keys: str
    place: QWidget
    name: str
    is_alone: bool


def bound(window: QWidget) -> Iterator[Bound]:
    """Every shortcut of a window."""
    for owner in (window, *window.findChildren(QWidget)):
        for action in QWidget.actions(owner):  # a page has commands by that name
            context = action.shortcutContext()
            if isinstance(owner, QMenu) or owner.window() is not window:
                continue
            place = window if context is Qt.ShortcutContext.WindowShortcut else owner
            for keys in action.shortcuts():
                yield Bound(keys.toString(), place, action.objectName(), context is ALONE)
        if isinstance(owner, QAbstractButton) and not owner.shortcut().isEmpty():
            yield Bound(owner.shortcut().toString(), window, owner.text(), False)
    for key in window.findChildren(QShortcut):
        parent = key.parent()
        assert isinstance(parent, QWidget)
        if parent.window() is window:
            is_wide = key.context() is Qt.ShortcutContext.WindowShortcut
            place = window if is_wide else parent
            yield Bound(key.key().toString(), place, "", key.context() is ALONE)


def ambiguous(window: QWidget) -> list[tuple[Bound, Bound]]:
    """Pairs of which Qt would run neither, wherever the focus is."""

    def meet(one: Bound, other: Bound) -> bool:
        if one.place is other.place:
            return True
        above, below = (one, other) if one.place.isAncestorOf(other.place) else (other, one)
        return above.place.isAncestorOf(below.place) and not above.is_alone

    found = sorted(bound(window), key=lambda one: one.keys)
    return [
        (a, b) for a, b in combinations(found, 2) if a.keys and a.keys == b.keys and meet(a, b)
    ]


def test_no_shortcut_is_ambiguous(qtbot: QtBot, application: Application) -> None:
    window, pages = application.window, application.pages
    open_model(qtbot, application)
    for kind in FORMS:
        pages.runs.show_form(kind)
    shown = [f"page.{page.name.lower()}" for page in window.pages]
    for command in ("help.welcome", "dock.log", *shown):
        window.commands.run(command)
    assert len(list(bound(window))) > 60 and not ambiguous(window)
    twice = QAction("twice", window)
    twice.setShortcut("Ctrl+N")
    pages.bench.addAction(twice)
    assert len(ambiguous(window)) == 1
    window.commands.run("app.settings")
    dialog = application.preferences.dialog
    assert dialog is not None and not ambiguous(dialog)
    dialog.close()


def test_no_shortcut_of_a_replay_is_ambiguous(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    ask(application, "hello")
    wait_idle(qtbot, application)
    application.window.commands.run("inspect.recordings")
    panel, windows = application.recordings_panel, application.recordings.windows
    panel.save.click()
    qtbot.waitUntil(lambda: panel.table.rowCount() == 1, timeout=5000)
    panel.table.selectRow(0)
    panel.table.setFocus()
    qtbot.keyClick(panel.table, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(windows) == 1, timeout=5000)
    keys = {one.keys for one in bound(windows[0])}
    assert {"Ctrl+W", "Ctrl+P"} <= keys and not ambiguous(windows[0])


@pytest.mark.parametrize("kind", (Kind.COMPARE, Kind.BROADCAST, Kind.QUANTIZE))
def test_escape_in_a_form_is_the_forms_while_a_chat_is_written(
    qtbot: QtBot, application: Application, script: Script, kind: Kind
) -> None:
    script.replies, script.step_s = 2000, 0.01
    open_model(qtbot, application)
    send(qtbot, application, "Tell me")
    runs = application.pages.runs
    application.window.activateWindow()
    runs.show_form(kind)
    focused = QApplication.focusWidget()
    assert focused is not None and runs.isAncestorOf(focused) and focused is not runs.table.view
    qtbot.keyClick(focused, Qt.Key.Key_Escape)
    assert runs.table.view.isVisible()
    assert application.pages.chat.is_busy
    qtbot.keyClick(runs.table.view, Qt.Key.Key_Escape)
    wait_idle(qtbot, application)


def broadcast(qtbot: QtBot, application: Application, max_tokens: int) -> BroadcastView:
    view = application.pages.runs.broadcast
    application.window.activateWindow()
    application.pages.runs.show_form(Kind.BROADCAST)
    view.prompt.setPlainText("Tell us")
    view.max_tokens.setValue(max_tokens)
    view.start.setFocus()
    qtbot.keyClick(view.start, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: all(cell.reply.text for cell in view.cells), timeout=5000)
    return view


def test_escape_stops_the_broadcast_and_not_the_chat(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.replies, script.step_s = 2000, 0.01
    open_model(qtbot, application)
    send(qtbot, application, "Tell me")
    view = broadcast(qtbot, application, 2000)
    focused = QApplication.focusWidget()
    assert focused is not None
    qtbot.keyClick(focused, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not view.is_running, timeout=5000)
    assert all(cell.reply.stage is Stage.STOPPED for cell in view.cells)
    assert application.pages.chat.is_busy and view.isVisible()


def test_escape_in_a_zoomed_chart_zooms_out_and_then_stops_the_chat(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.replies, script.step_s = 2000, 0.01
    open_model(qtbot, application)
    send(qtbot, application, "Tell me")
    application.window.commands.run("page.tune")
    application.window.activateWindow()
    chart = application.pages.tune.charts.ttft
    chart.setFocus()
    now = chart.view.now
    chart.group.zoom_to(now - 20, now - 5, now)
    qtbot.keyClick(chart, Qt.Key.Key_Escape)
    assert chart.group.zoom is None and application.pages.chat.is_busy
    qtbot.keyClick(chart, Qt.Key.Key_Escape)
    wait_idle(qtbot, application)


def test_escape_in_the_timeline_leaves_the_step_and_not_the_chat(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.replies, script.step_s = 2000, 0.01
    open_model(qtbot, application)
    send(qtbot, application, "Tell me")
    application.window.commands.run("inspect.step-timeline")
    application.window.activateWindow()
    view = application.views.timeline.view
    qtbot.waitUntil(lambda: view.history.end > view.history.first, timeout=5000)
    view.choose(view.history.end - 1)
    view.setFocus()
    qtbot.keyClick(view, Qt.Key.Key_Escape)
    assert view.chosen_index == NONE and application.pages.chat.is_busy


def test_f2_in_the_table_is_the_tables_while_a_chat_is_open(
    qtbot: QtBot, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QInputDialog, "getText", lambda *_, **__: ("renamed", True))
    open_model(qtbot, application)
    ask(application, "hello")
    view = broadcast(qtbot, application, 8)
    qtbot.waitUntil(lambda: not view.is_running, timeout=5000)
    wait_idle(qtbot, application)
    table, chat = application.pages.runs.table, application.pages.chat
    application.pages.runs.show_table()
    qtbot.waitUntil(lambda: len(table.runs) == 1, timeout=5000)
    table.view.selectRow(0)
    assert application.window.commands.action("chat.rename").isEnabled()
    qtbot.keyClick(table.view, Qt.Key.Key_F2)
    qtbot.waitUntil(lambda: [run.title for run in table.runs] == ["renamed"], timeout=5000)
    assert application.window.page.name == "Runs" and chat.current.title != "renamed"
