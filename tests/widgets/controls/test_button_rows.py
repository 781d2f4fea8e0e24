"""Buttons are whole at any width."""

from __future__ import annotations

from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from widgets.controls.buttons import ButtonRows

TEXTS = ("Open this model", "Compare in chat", "Copy command line", "Export…", "Delete")


def test_what_does_not_fit_stands_in_another_row(qtbot: QtBot) -> None:
    buttons = [QPushButton(text) for text in TEXTS]
    around = QWidget()  # a window of its own would not become narrower than its buttons
    qtbot.addWidget(around)
    around.resize(2000, 400)
    rows = ButtonRows(buttons)
    rows.setParent(around)
    around.show()
    all_in_one = sum(button.sizeHint().width() for button in buttons) + 100

    def are_whole() -> bool:
        inside = max(button.geometry().right() for button in shown) < rows.width()
        wide = [button.width() >= button.sizeHint().width() for button in shown]
        return inside and all(wide)

    shown = buttons
    for width, count in ((all_in_one, 1), (all_in_one // 2, 2), (all_in_one, 1)):
        rows.resize(width, 200)
        lines = lambda: len({button.y() for button in shown})
        fits = lambda c=count, n=lines: are_whole() and (n() == 1) is (c == 1)
        qtbot.waitUntil(fits, timeout=10_000)
        in_order = sorted(shown, key=lambda button: (button.y(), button.x()))
        assert [button.text() for button in in_order] == [*TEXTS]
    buttons[1].hide()
    rows.arrange()
    shown = [button for button in buttons if not button.isHidden()]
    qtbot.waitUntil(are_whole, timeout=10_000)
