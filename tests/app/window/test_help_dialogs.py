"""A dialog of tables is as large as its tables."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.window.help_dialogs import _TableDialog
from widgets.theme.theme import apply_theme


def test_a_dialog_with_room_for_its_tables_scrolls_nowhere(
    qtbot: QtBot, qapp: QApplication
) -> None:
    apply_theme(qapp, "light")
    dialog = _TableDialog("Keys", "", {"File": [(f"Command {n}", "Ctrl+K") for n in range(20)]})
    qtbot.addWidget(dialog)
    dialog.show()
    area = dialog._area
    bars = area.verticalScrollBar(), area.horizontalScrollBar()
    assert area.frameWidth() and [bar.maximum() for bar in bars] == [0, 0]
