"""What changes inside of a panel does not lay out, or paint, what is around it."""

from __future__ import annotations

from collections import Counter

import pytest
from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtWidgets import QLabel, QMainWindow, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.window.docks import CardDock, DockArea
from widgets.controls.frames import Contained


class Events(QObject):
    """Counts the events of each type that a widget gets."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self.types: Counter[QEvent.Type] = Counter()
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.types[event.type()] += 1
        return False

    @property
    def num_layouts(self) -> int:
        return self.types[QEvent.Type.LayoutRequest]


@pytest.fixture
def label() -> QLabel:
    return QLabel("a word")


@pytest.fixture
def outside(qtbot: QtBot, label: QLabel) -> QWidget:
    """A window with a panel in it that has a label in a layout."""
    panel = QWidget()
    QVBoxLayout(panel).addWidget(label)
    window = QWidget()
    QVBoxLayout(window).addWidget(Contained(panel))
    qtbot.addWidget(window)
    window.resize(400, 200)
    window.show()
    qtbot.waitExposed(window)
    qtbot.wait(1)
    return window


def settle(qtbot: QtBot) -> None:
    """Requests are posted from layout to layout."""
    for _ in range(6):
        qtbot.wait(1)


def test_content_fills_it(outside: QWidget, label: QLabel, qtbot: QtBot) -> None:
    contained = outside.findChild(Contained)
    assert contained.content.size() == contained.size()
    outside.resize(500, 300)
    qtbot.waitUntil(lambda: contained.width() > 450)
    assert contained.content.size() == contained.size()
    assert contained.sizeHint() == contained.content.sizeHint()


def test_another_text_of_the_same_height_lays_out_nothing_around(
    outside: QWidget, label: QLabel, qtbot: QtBot
) -> None:
    label.setMinimumWidth(20)
    settle(qtbot)
    events = Events(outside)
    label.setText("other words, and more of them")
    settle(qtbot)
    assert label.text().startswith("other")
    assert events.num_layouts == 0


def test_content_that_needs_more_gets_it(outside: QWidget, label: QLabel, qtbot: QtBot) -> None:
    events = Events(outside)
    label.setMinimumSize(QSize(600, 300))
    qtbot.waitUntil(lambda: events.num_layouts > 0)
    assert outside.minimumSizeHint().width() >= 600


def test_what_was_asked_while_hidden_holds_when_it_is_shown(qtbot: QtBot, label: QLabel) -> None:
    panel = QWidget()
    QVBoxLayout(panel).addWidget(label)
    window = QMainWindow()
    window.setCentralWidget(Contained(panel))
    qtbot.addWidget(window)
    label.setMinimumSize(QSize(500, 250))
    window.show()
    qtbot.waitUntil(lambda: label.height() >= 250)


def test_docks_stay_where_they_are(qtbot: QtBot, label: QLabel) -> None:
    panel, beside = QWidget(), QLabel("beside it")
    QVBoxLayout(panel).addWidget(label)
    label.setMinimumWidth(20)
    area = DockArea(QWidget())
    area.addDockWidget(Qt.DockWidgetArea.BottomDockWidgetArea, CardDock("One", "one", panel))
    area.addDockWidget(Qt.DockWidgetArea.BottomDockWidgetArea, CardDock("Two", "two", beside))
    qtbot.addWidget(area)
    area.resize(600, 400)
    area.show()
    qtbot.waitExposed(area)
    settle(qtbot)
    events, other = Events(area), Events(beside)
    label.setText("what is written here does not move what is there")
    settle(qtbot)
    assert events.num_layouts == 0
    assert other.types[QEvent.Type.Paint] == 0
