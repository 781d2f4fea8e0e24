"""Another theme or text size reaches every widget once, what is in view first, and nothing that is
half done is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QCursor, QImage
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)
from pytestqt.qtbot import QtBot

from widgets.theme.restyling import Restyling, restyling
from widgets.theme.theme import (
    apply_text_size,
    apply_theme,
    load_theme,
    restyle,
    theme,
    theme_notifier,
    ui_font,
)

DEPTH = 6


class Counted(QFrame):
    """Counts how often it was given another style, and painted."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.told: Counter[str] = Counter()
        self.setProperty("panel", True)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.StyleChange:
            self.told["style"] += 1
        super().changeEvent(event)

    def paintEvent(self, event: object) -> None:
        self.told["paint"] += 1
        super().paintEvent(event)  # type: ignore[arg-type]


class Window(QWidget):
    """Two pages of nested panels with something of everything in them."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[Counted] = []
        self.stack = QStackedWidget()
        self.pages = [self._page(), self._page()]
        for page in self.pages:
            self.stack.addWidget(page)
        QVBoxLayout(self).addWidget(self.stack)
        self.resize(420, 420)

    def _page(self) -> QWidget:
        page = within = QWidget()
        for _ in range(DEPTH):
            column = QVBoxLayout(within)
            row = QHBoxLayout()
            for widget in (QLabel("12 ms"), QPushButton("Go"), QCheckBox("on"), QLineEdit("7")):
                row.addWidget(widget)
            restyle(row.itemAt(0).widget(), role="small")
            column.addLayout(row)
            within = Counted()
            self.counted.append(within)
            column.addWidget(within, 1)
        return page

    def picture(self) -> QImage:
        return self.grab().toImage()


@pytest.fixture
def work(qapp: QApplication) -> Iterator[Restyling]:
    apply_theme(qapp, "light")
    found = restyling()
    yield found
    found.is_gradual = False
    found.finish()
    apply_text_size(qapp, 100)
    apply_theme(qapp, "light")


@pytest.fixture
def window(qtbot: QtBot, qapp: QApplication, work: Restyling) -> Iterator[Window]:
    QCursor.setPos(-1, -1)  # where another test left it, a button would be lit
    made = Window()
    qtbot.addWidget(made)
    made.show()
    for page in (1, 0):
        made.stack.setCurrentIndex(page)
        QApplication.processEvents()
    yield made


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_window_built_without_style_looks_the_same_when_it_is_shown(
    qtbot: QtBot, window: Window, work: Restyling, goes_on: bool
) -> None:
    def picture(of: Window, page: int) -> QImage:
        of.stack.setCurrentIndex(page)
        QApplication.processEvents()
        if focus := of.focusWidget():
            focus.clearFocus()
        return of.picture()

    expected = [picture(window, page) for page in (0, 1)]
    with work.put_off():
        made = Window()
        made.sizeHint()  # everything in it is asked for its size
    qtbot.addWidget(made)
    before = work.num_dressed
    made.show()
    qtbot.waitUntil(lambda: picture(made, 0) == expected[0])
    assert picture(window, 1) == expected[1]
    seen = work.num_dressed - before
    if goes_on:
        work.go_on()
        qtbot.waitUntil(lambda: work.num_dressed - before > 1.9 * seen)
    else:
        assert seen < 0.6 * len(made.findChildren(QWidget))
    qtbot.waitUntil(lambda: picture(made, 1) == expected[1])
    assert all(counted.told["style"] == 1 for counted in made.counted)
    work.leave()


def test_a_window_that_closed_gets_no_style(work: Restyling) -> None:
    with work.put_off():
        made = Window()
        made.sizeHint()
    before = work.num_dressed
    work.leave()
    work.finish()
    assert work.num_dressed == before and not work.is_busy
    made.deleteLater()


def _settle(qtbot: QtBot, work: Restyling) -> None:
    qtbot.waitUntil(lambda: not work.is_busy)
    QApplication.processEvents()


def test_a_widget_is_styled_once_however_deep_it_is(
    qapp: QApplication, window: Window, work: Restyling
) -> None:
    for counted in window.counted:
        counted.told.clear()
    before = work.num_dressed
    apply_theme(qapp, "dark")
    assert {counted.told["style"] for counted in window.counted} == {1}
    assert work.num_dressed - before <= len(qapp.allWidgets())
    before = work.num_dressed
    apply_theme(qapp, "dark")
    assert work.num_dressed == before


def test_in_slices_it_becomes_the_same_as_at_once(
    qtbot: QtBot, qapp: QApplication, window: Window, work: Restyling
) -> None:
    expected = {}
    for mode in ("dark", "light"):
        apply_theme(qapp, mode)  # type: ignore[arg-type]
        QApplication.processEvents()
        expected[mode] = window.picture()
    apply_text_size(qapp, 125)
    QApplication.processEvents()
    expected["125"] = window.picture()
    apply_text_size(qapp, 100)
    QApplication.processEvents()
    places = [child.geometry() for child in window.findChildren(QWidget)]
    work.is_gradual = True
    for mode in ("dark", "light"):
        apply_theme(qapp, mode)  # type: ignore[arg-type]
        _settle(qtbot, work)
        assert window.picture() == expected[mode]
        assert [child.geometry() for child in window.findChildren(QWidget)] == places
    apply_text_size(qapp, 125)
    _settle(qtbot, work)
    assert window.picture() == expected["125"]


def test_nothing_is_painted_or_moved_before_all_in_view_is_ready(
    qtbot: QtBot, qapp: QApplication, window: Window, work: Restyling
) -> None:
    work.is_gradual = True
    shown = [counted for counted in window.counted if counted.isVisible()]
    hidden = [counted for counted in window.counted if not counted.isVisible()]
    assert len(shown) == len(hidden) == DEPTH
    seen: list[tuple[set[int], set[int], set[int]]] = []

    def look() -> None:
        seen.append(
            (
                {counted.told["style"] for counted in shown},
                {counted.told["paint"] for counted in shown},
                {counted.told["style"] for counted in hidden},
            )
        )

    QApplication.processEvents()
    for counted in window.counted:
        counted.told.clear()
    work.exchanged.connect(look)
    apply_theme(qapp, "dark")
    assert not theme().is_dark  # soon
    _settle(qtbot, work)
    work.exchanged.disconnect(look)
    assert seen == [({1}, {0}, {0})]
    assert window.updatesEnabled() and theme() is load_theme("dark")
    assert {counted.told["style"] for counted in hidden} == {1}
    qtbot.waitUntil(lambda: all(counted.told["paint"] for counted in shown))


def test_what_is_shown_before_its_turn_has_the_new_look(
    qtbot: QtBot, qapp: QApplication, window: Window, work: Restyling
) -> None:
    window.stack.setCurrentIndex(1)
    apply_theme(qapp, "dark")
    QApplication.processEvents()
    expected = window.picture()
    apply_theme(qapp, "light")
    window.stack.setCurrentIndex(0)
    QApplication.processEvents()
    work.is_gradual = True
    busy: list[bool] = []

    def show_the_other() -> None:
        busy.append(work.is_busy)
        window.stack.setCurrentIndex(1)

    work.exchanged.connect(show_the_other)
    apply_theme(qapp, "dark")
    _settle(qtbot, work)
    work.exchanged.disconnect(show_the_other)
    assert busy == [True]
    assert window.picture() == expected


def test_a_change_of_mind_and_widgets_that_come_and_go_meanwhile(
    qtbot: QtBot, qapp: QApplication, window: Window, work: Restyling
) -> None:
    expected = window.picture()
    work.is_gradual = True
    apply_theme(qapp, "dark")
    QApplication.processEvents()  # it has begun
    gone = Counted(window)
    gone.show()
    restyle(window.counted[0], notice="error")
    apply_theme(qapp, "light")
    told: list[bool] = []
    tell = lambda: told.append(theme().is_dark)
    theme_notifier().changed.connect(tell)
    gone.deleteLater()
    _settle(qtbot, work)
    theme_notifier().changed.disconnect(tell)
    restyle(window.counted[0], notice=None)
    QApplication.processEvents()
    assert window.picture() == expected and not theme().is_dark and not told[-1]


def test_no_slice_has_the_work_of_all_widgets(
    qtbot: QtBot, qapp: QApplication, window: Window, work: Restyling,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Fonts, and what Qt is kept from, are changed one by one; layouts come before the painting."""
    labels = window.findChildren(QLabel)
    for label in labels:
        label.setFont(ui_font("small"))
    monkeypatch.setattr("widgets.theme.restyling.SLICE_S", 0.0)
    monkeypatch.setattr("widgets.theme.restyling.REST_MS", 0)
    states: list[tuple[list[float], list[bool], bool]] = []
    muted = Qt.WidgetAttribute.WA_SetStyle
    arranged: list[int] = []

    def look() -> None:
        sizes = [label.font().pointSizeF() for label in labels]
        marks = [label.testAttribute(muted) for label in labels]
        states.append((sizes, marks, window.updatesEnabled()))

    look()
    work.arranged.connect(lambda: arranged.append(len(states)))
    work._later.timeout.connect(look)
    work.is_gradual = True
    apply_text_size(qapp, 125)
    _settle(qtbot, work)
    work._later.timeout.disconnect(look)
    for place in (0, 1):
        changes = [
            sum(old != new for old, new in zip(before[place], after[place], strict=True))
            for before, after in pairwise(states)
        ]
        assert [count for count in changes if count][: len(labels)] == [1] * len(labels)
    assert not any(states[-1][1]) and states[-1][2]
    assert not states[arranged[0]][2]  # placed, and still to be painted


def test_finishing_leaves_nothing_for_later(
    qapp: QApplication, window: Window, work: Restyling
) -> None:
    for counted in window.counted:
        counted.told.clear()
    work.is_gradual = True
    apply_theme(qapp, "dark")
    apply_text_size(qapp, 125)
    assert work.is_busy
    work.finish()
    assert not work.is_busy and theme().is_dark and window.updatesEnabled()
    assert {counted.told["style"] for counted in window.counted} == {1}
