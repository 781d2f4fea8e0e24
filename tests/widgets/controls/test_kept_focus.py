"""A control that is switched off or hidden while it has the keyboard keeps its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QGroupBox,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)
from pytestqt.qtbot import QtBot

from widgets.controls.kept_focus import KeptFocus


class Form(QWidget):
    """A field, a group of three buttons, and a button behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.field, self.group, self.after = QLineEdit(), QFrame(), QPushButton("After")
        self.before, self.test, self.save = (QPushButton(n) for n in ("Before", "Test", "Save"))
        inner = QVBoxLayout(self.group)
        for button in (self.before, self.test, self.save):
            inner.addWidget(button)
        self.box = QGroupBox("Others")
        self.inside, self.beside = QPushButton("Inside"), QPushButton("Beside")
        boxed = QVBoxLayout(self.box)
        boxed.addWidget(self.inside)
        boxed.addWidget(self.beside)
        column = QVBoxLayout(self)
        for widget in (self.field, self.group, self.box, self.after):
            column.addWidget(widget)


@pytest.fixture
def form(qtbot: QtBot, qapp: QApplication) -> Iterator[Form]:
    keeper = KeptFocus(qapp)
    made = Form()
    made.show()
    made.activateWindow()
    qtbot.waitUntil(made.isActiveWindow)
    made.test.setFocus()
    yield made
    made.close()
    made.deleteLater()
    keeper.deleteLater()


def press(qtbot: QtBot, key: Qt.Key) -> None:
    focused = QApplication.focusWidget()
    assert focused is not None
    qtbot.keyClick(focused, key)


def test_its_own_click_switches_it_off_and_the_next_key_presses_nothing_else(
    qtbot: QtBot, form: Form
) -> None:
    pressed: list[str] = []
    form.test.clicked.connect(lambda: form.test.setEnabled(False))
    form.save.clicked.connect(lambda: pressed.append("save"))
    press(qtbot, Qt.Key.Key_Space)
    press(qtbot, Qt.Key.Key_Space)
    assert pressed == [] and form.group.hasFocus()
    form.test.setEnabled(True)
    assert form.test.hasFocus()


def test_tab_goes_on_from_its_place_in_both_directions(qtbot: QtBot, form: Form) -> None:
    form.test.setEnabled(False)
    press(qtbot, Qt.Key.Key_Tab)
    assert form.save.hasFocus()
    form.test.setEnabled(True)
    assert form.save.hasFocus()  # who went on is not called back
    form.test.setFocus()
    form.test.hide()
    press(qtbot, Qt.Key.Key_Backtab)
    assert form.before.hasFocus()
    form.test.show()
    assert form.before.hasFocus()


def test_what_is_around_it_may_be_switched_off_or_hidden_with_it(qtbot: QtBot, form: Form) -> None:
    form.group.setEnabled(False)
    assert form.hasFocus()
    press(qtbot, Qt.Key.Key_Tab)
    assert form.inside.hasFocus()
    form.group.setEnabled(True)
    form.save.setFocus()
    form.group.hide()
    assert form.hasFocus()
    form.group.show()
    assert form.save.hasFocus()


def test_where_the_program_says_who_gets_the_keyboard_that_holds(form: Form) -> None:
    form.test.hide()
    form.save.setFocus()  # whom Qt would have taken too
    assert form.save.hasFocus()
    form.test.show()
    assert form.save.hasFocus()
    form.after.setFocus()
    form.save.hide()
    assert form.after.hasFocus()


def test_a_box_that_hands_the_keyboard_to_a_child_does_not_get_it(qtbot: QtBot, form: Form) -> None:
    form.beside.setFocus()
    form.beside.setEnabled(False)
    assert form.hasFocus()
    press(qtbot, Qt.Key.Key_Tab)
    assert form.after.hasFocus()


def test_it_may_be_deleted(qtbot: QtBot, form: Form) -> None:
    form.test.hide()
    form.test.setParent(None)
    form.test.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    press(qtbot, Qt.Key.Key_Tab)
    assert QApplication.focusWidget() is not form


def test_a_window_that_closes_is_left_alone(qtbot: QtBot, form: Form) -> None:
    form.close()
    assert not form.group.hasFocus()


def test_what_gets_the_focus_out_of_sight_is_scrolled_into_view(
    qtbot: QtBot, form: Form
) -> None:
    area = QScrollArea(widgetResizable=True)
    qtbot.addWidget(area)
    form.setMinimumHeight(2000)
    area.setWidget(form)
    area.resize(300, 100)
    area.show()
    area.activateWindow()
    qtbot.waitUntil(area.isActiveWindow)
    form.field.setFocus()
    area.verticalScrollBar().setValue(area.verticalScrollBar().maximum())
    form.after.setFocus()
    assert not form.after.visibleRegion().isEmpty()
    form.field.setFocus(Qt.FocusReason.TabFocusReason)
    assert not form.field.visibleRegion().isEmpty()
    area.takeWidget()  # the fixture deletes it
