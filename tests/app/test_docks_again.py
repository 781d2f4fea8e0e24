"""Docks that were put where they were in the run before."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QTabBar
from pytestqt.qtbot import QtBot

from app.window import Application
from tests.app.window_fixtures import next_run


def over_the_page(made: Application) -> list[tuple[int, ...]] | None:
    """Tab bars of docks that lie over the page; None while nothing is laid out yet."""
    area = made.window.dock_area
    central = area.centralWidget()
    bars = area.findChildren(QTabBar, options=Qt.FindChildOption.FindDirectChildrenOnly)
    shown = [bar.geometry() for bar in bars if bar.isVisible() and bar.count()]
    if central is None or not any(place.top() >= central.geometry().bottom() for place in shown):
        return None
    return [place.getRect() for place in shown if place.intersects(central.geometry())]


def test_no_tab_bar_lies_over_the_page_in_the_second_run(qapp: QApplication, qtbot: QtBot) -> None:
    """Qt left one behind, in the corner where a chat is begun."""
    for _ in range(2):
        with next_run(qapp) as made:
            made.show()
            qtbot.waitUntil(lambda window=made: over_the_page(window) is not None)
            assert over_the_page(made) == []
