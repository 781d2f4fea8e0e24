"""The Server page in small windows and with large text: how a call went, and the state of the
server, are seen whole."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.features.serve.calls_table import CALL, COLUMNS, STATUS
from app.features.serve.page import ServerPage
from app.main.application import Application
from tests.app.features.serve.test_page import WAIT_MS, ask, page, start
from tests.app.window_fixtures import application, script, usual_text
from tests.tiers import tiered

__all__ = ["application", "page", "script", "usual_text"]  # fixtures

OPENS = "/models/tiny"


def right_of(page: ServerPage, column: int) -> int:
    """Pixels from the left of the table's cells to the end of a column, unscrolled."""
    table = page.view.table
    return table.columnViewportPosition(column) + table.columnWidth(column)


def is_whole(view: QWidget, part: QWidget) -> bool:
    """Whether a part is seen whole."""
    place = part.rect().translated(part.mapTo(view, part.rect().topLeft()))
    return view.rect().contains(place) and part.width() >= part.minimumSizeHint().width()


@pytest.mark.parametrize(
    ("size", "percent"),
    tiered([((1280, 800), 100), ((1280, 800), 150), ((1000, 700), 150)], [((1000, 700), 150)]),
)
def test_state_and_status_are_seen_whole(
    qtbot: QtBot,
    application: Application,
    page: ServerPage,
    size: tuple[int, int],
    percent: int,
) -> None:
    application.window.resize(*size)
    application.settings.preferences.set("text_size", percent)
    view = page.view
    url = start(qtbot, page)
    assert ask(qtbot, f"{url}/nothing").status == 404
    qtbot.waitUntil(lambda: view.model.rowCount() == 1, timeout=WAIT_MS)
    room = lambda: view.table.viewport().width()
    qtbot.waitUntil(lambda: right_of(page, STATUS) <= room(), timeout=WAIT_MS)
    qtbot.waitUntil(lambda: view.state.width() >= view.state.wanted_width, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: view.width() <= view.parentWidget().width(), timeout=WAIT_MS)
    parts = (view.url, view.copy_url, view.show_requests)
    qtbot.waitUntil(lambda: all(is_whole(view, part) for part in parts), timeout=WAIT_MS)
    tip = view.model.index(0, CALL).data(Qt.ItemDataRole.ToolTipRole)
    assert "Call: GET /nothing" in tip and "Status: 404" in tip


@pytest.mark.slow
def test_columns_that_were_pulled_stay_as_they_are(
    qtbot: QtBot, application: Application, page: ServerPage
) -> None:
    application.window.resize(1280, 800)
    table = page.view.table
    table.setColumnWidth(CALL, 333)
    application.window.resize(1500, 800)
    qtbot.waitUntil(lambda: page.view.width() > 500, timeout=WAIT_MS)
    assert table.columnWidth(CALL) == 333
    assert all(table.columnWidth(number) > 0 for number in range(len(COLUMNS)))
