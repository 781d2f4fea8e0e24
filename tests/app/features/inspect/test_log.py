"""The log: what is kept, and what the panel shows of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from PySide6.QtGui import QGuiApplication, QKeySequence
from pytestqt.qtbot import QtBot

from app import log as app_log
from app.features.inspect import log_view
from app.features.inspect.log_view import EMPTY_TEXT, NO_MATCH, LogPanel
from app.log import LogBuffer
from tests.figures import numbers

log = logging.getLogger("app.test_log")


@pytest.fixture
def buffer() -> Iterator[LogBuffer]:
    made = LogBuffer()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def panel(qtbot: QtBot, buffer: LogBuffer) -> LogPanel:
    made = LogPanel(buffer)
    qtbot.addWidget(made)
    made.resize(900, 260)
    made.show()
    return made


def messages(panel: LogPanel) -> list[str]:
    return [panel.shown.index(row, 3).data() for row in range(panel.shown.rowCount())]


def test_the_keeper_keeps_the_last_lines(
    buffer: LogBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(app_log.MAX_LINES + 10):
        log.info("line %d", number)
    log.debug("too small")
    kept = buffer.since(0)
    assert len(kept) == app_log.MAX_LINES and kept[0].text == "line 10"
    assert [line.text for line in buffer.since(buffer.num_lines - 2)] == [
        f"line {app_log.MAX_LINES + 8}", f"line {app_log.MAX_LINES + 9}",
    ]  # fmt: skip
    assert buffer.since(buffer.num_lines) == []


def test_lines_of_any_thread_appear_and_are_filtered(qtbot: QtBot, panel: LogPanel) -> None:
    assert panel._stack.currentWidget() is panel._empty and panel._empty.text() == EMPTY_TEXT
    thread = threading.Thread(target=lambda: log.warning("memory is low"))
    thread.start()
    thread.join()
    log.info("loaded tiny, float32")
    try:
        raise ValueError("a knob fell off")
    except ValueError:
        log.exception("the engine stopped")
    qtbot.waitUntil(lambda: panel.shown.rowCount() == 3, timeout=3000)
    assert messages(panel) == ["memory is low", "loaded tiny, float32", "the engine stopped …"]
    panel.level.setCurrentIndex(1)
    assert messages(panel) == ["memory is low", "the engine stopped …"]
    panel.level.setCurrentIndex(2)
    assert messages(panel) == ["the engine stopped …"]
    panel.level.setCurrentIndex(0)
    panel.text.setText("LOADED float")
    assert messages(panel) == ["loaded tiny, float32"] and numbers(panel.note.text()) == [1, 3]
    panel.text.setText("nowhere")
    assert panel._empty.text() == NO_MATCH and not panel.copy.isEnabled()
    panel.text.setText("knob")
    panel.table.selectRow(0)
    assert panel.details.isVisible() and "ValueError: a knob" in panel.details.toPlainText()


def test_copying_takes_the_selection_or_all(qtbot: QtBot, panel: LogPanel) -> None:
    for word in ("one", "two", "three"):
        log.info(word)
    qtbot.waitUntil(lambda: panel.shown.rowCount() == 3, timeout=3000)
    panel.copy.click()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert [line.split()[1:] for line in lines] == [
        ["INFO", "app.test_log", word] for word in ("one", "two", "three")
    ]
    panel.table.selectRow(1)
    panel.table.setFocus()
    qtbot.keySequence(panel.table, QKeySequence(QKeySequence.StandardKey.Copy))
    assert QGuiApplication.clipboard().text().endswith("two")


def test_the_panel_is_bounded_and_follows(
    qtbot: QtBot, panel: LogPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "MAX_LINES", 50)
    for number in range(70):
        log.info("line %d", number)
    qtbot.waitUntil(lambda: "line 69" in messages(panel), timeout=3000)
    bar = panel.table.verticalScrollBar()
    qtbot.waitUntil(lambda: 0 < bar.maximum() == bar.value(), timeout=3000)
    panel.follow.click()
    bar.setValue(0)
    log.info("line 70")
    qtbot.waitUntil(lambda: messages(panel)[-1] == "line 70", timeout=3000)
    assert bar.value() == 0 and panel.model.rowCount() <= 70
    panel.follow.click()
    assert bar.value() == bar.maximum()
    for number in range(20):
        log.info("more %d", number)
    qtbot.waitUntil(lambda: messages(panel)[-1] == "more 19", timeout=3000)
    assert panel.model.rowCount() == 50
