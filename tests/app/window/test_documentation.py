"""Help > Documentation: one dialog, which shows and links the documents."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from app.main.application import Application
from app.paths import NAMES
from app.window.help_dialogs import DocumentationDialog
from tests.app.window_fixtures import application, script

__all__ = ["application", "script"]


def test_help_opens_it_once_and_links_change_the_document(
    qtbot: QtBot, application: Application
) -> None:
    window = application.window
    window.commands.run("help.documentation")
    window.commands.run("help.documentation")
    (dialog,) = window.findChildren(DocumentationDialog)
    assert dialog.isVisible() and dialog.list.count() == len(NAMES)
    shown = []
    for row, document in enumerate(dialog.documents):
        dialog.list.setCurrentRow(row)
        shown.append(dialog.text.toPlainText())
        assert shown[-1].startswith(document.title)
        assert dialog.area.accessibleName() == document.title
    assert len(set(shown)) == len(NAMES)
    bar = dialog.area.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    bar.setValue(bar.maximum())
    dialog.text.link_activated.emit("gpu.md")
    assert dialog.list.currentRow() == NAMES.index("gpu") and bar.value() == 0
    dialog.close()
