"""Scrolling the list of chats paints the rows that come into view, on the surface around it."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QModelIndex
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QApplication, QStyleOptionViewItem
from pytestqt.qtbot import QtBot

from widgets.chat.conversation_items import ConversationDelegate
from widgets.chat.conversation_list import ConversationList
from widgets.chat.records import ConversationRecord
from widgets.theme.theme import apply_theme, load_theme


class Counted(ConversationDelegate):
    num_painted = 0

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex) -> None:
        self.num_painted += 1
        super().paint(painter, option, index)


@pytest.fixture
def shown(qtbot: QtBot) -> ConversationList:
    made = ConversationList()
    qtbot.addWidget(made)
    records = [ConversationRecord(f"c{n}", f"Chat {n}", "14:05") for n in range(200)]
    made.set_rows([(record.id, "") for record in records], records.__getitem__, "c3")
    made.resize(240, 800)
    made.show()
    return made


def settle(shown: ConversationList) -> None:
    """Paint all once, scrolled."""
    shown.view.verticalScrollBar().setValue(1)
    for _ in range(3):  # an event may ask for a layout, and that for a painting
        QApplication.processEvents()


def test_a_notch_of_the_wheel_paints_the_new_rows_only(shown: ConversationList) -> None:
    counted = Counted(shown.view)
    shown.view.setItemDelegate(counted)
    settle(shown)
    in_view = shown.view.viewport().height() / shown.view.sizeHintForRow(0)
    counted.num_painted = 0
    shown.view.verticalScrollBar().setValue(3 * shown.view.sizeHintForRow(0))
    QApplication.processEvents()
    assert in_view > 12
    assert 0 < counted.num_painted <= 5  # and those that are cut above and below


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_list_lies_on_the_panel_in_both_themes(
    qapp: QApplication, shown: ConversationList, mode: str
) -> None:
    try:
        apply_theme(qapp, mode)
        view = shown.view.viewport()
        for row in (0, 40):
            shown.view.verticalScrollBar().setValue(row * shown.view.sizeHintForRow(0))
            image = view.grab().toImage()
            place = image.width() - 2, image.height() - 2
            assert image.pixelColor(*place) == load_theme(mode).color("panel")
    finally:
        apply_theme(qapp, "light")
