"""Help > Documentation: the list of documents and the open one."""

from __future__ import annotations

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QShowEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QListWidget, QScrollArea, QVBoxLayout, QWidget

from app.paths import documents
from widgets.chat.message_text import MessageText
from widgets.controls.frames import scroll_by_keys
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_3, SPACE_4, SPACE_6, theme_notifier

SIZE = (1000, 720)
LIST_WIDTH = 168
WIDEST = 820
"""Pixels of a line at the usual size of text: longer ones are hard to read."""


class DocumentationDialog(QDialog):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Documentation")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.documents = documents()
        self.list = QListWidget()
        self.list.setAccessibleName("Documents")
        self.list.addItems([document.title for document in self.documents])
        self.text = MessageText()
        self.text.setAccessibleName("Document")
        self.text.link_activated.connect(self._follow)
        content = QWidget()
        content.setProperty("bare", True)
        inside = QVBoxLayout(content)
        inside.setContentsMargins(SPACE_4, SPACE_3, SPACE_6, SPACE_6)
        inside.addWidget(self.text)
        inside.addStretch(1)
        self.area = QScrollArea()
        self.area.setWidgetResizable(True)
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.area.setWidget(content)
        scroll_by_keys(self.area)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        row.setSpacing(SPACE_3)
        row.addWidget(self.list)
        row.addWidget(self.area, 1)
        self._fit()
        theme_notifier().changed.connect(self._fit)
        self.list.currentRowChanged.connect(self._show)
        self.list.setCurrentRow(0)
        self.resize(*map(scaled, SIZE))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.list.scheduleDelayedItemsLayout()  # rows were measured before they had their style

    def _fit(self) -> None:
        self.list.setFixedWidth(scaled(LIST_WIDTH))
        self.text.setMaximumWidth(scaled(WIDEST))
        self.list.scheduleDelayedItemsLayout()

    def _show(self, row: int) -> None:
        document = self.documents[row]
        self.text.set_markdown(document.text)
        self.area.setAccessibleName(document.title)
        self.area.verticalScrollBar().setValue(0)

    def _follow(self, link: str) -> None:
        """Documents link to each other by file name; what is elsewhere opens in the browser."""
        names = [document.path.name for document in self.documents]
        if link in names:
            self.list.setCurrentRow(names.index(link))
        else:
            QDesktopServices.openUrl(QUrl(link))


def show_documentation(window: QWidget) -> None:
    """Open the one dialog beside `window`."""
    dialog = window.findChild(DocumentationDialog) or DocumentationDialog(window)
    dialog.show()
    dialog.raise_()
    dialog.activateWindow()
