"""A fitted frame arranges its contents for its size and for theirs."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import hbox


class Row(FittedFrame):
    """A title that hides where `words` would be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.title, self.words = QLabel("Title"), QLabel("words")
        hbox(self.title, (self.words, 1), of=self)

    def fit(self) -> None:
        both = self.title.sizeHint().width() + self.words.sizeHint().width()
        self.title.setVisible(both + 20 <= self.width())


def test_contents_follow_the_size_and_other_text(qtbot: QtBot) -> None:
    row = Row()
    qtbot.addWidget(row)
    row.resize(400, 40)
    row.show()
    assert row.title.isVisible()
    row.words.setText("many words " * 12)
    qtbot.waitUntil(row.title.isHidden)
    row.words.setText("words")
    qtbot.waitUntil(row.title.isVisible)
    row.resize(row.words.sizeHint().width() + 20, 40)
    qtbot.waitUntil(row.title.isHidden)
