"""Help: keyboard shortcuts, About, and the documents."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata

from PySide6.QtCore import QSize, Qt, QUrl, qVersion
from PySide6.QtGui import QDesktopServices, QGuiApplication, QShowEvent
from PySide6.QtWidgets import QDialog, QGridLayout, QLabel, QListWidget, QScrollArea, QWidget

from app.log import log_file
from app.paths import config_dir, data_dir, documents, program_version
from app.window.commands import CommandRegistry
from app.window.crash_report import reports_dir
from widgets.chat.message_text import MessageText
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox
from widgets.controls.windows import FRAME, FittingSize
from widgets.plot.chart_menu import KEYS
from widgets.theme.fonts import scaled
from widgets.theme.theme import (
    SPACE_1,
    SPACE_2,
    SPACE_3,
    SPACE_4,
    SPACE_6,
    mono_font,
    theme_notifier,
)

CHANGE_KEYS = "app.keyboard"
ROWS_A_COLUMN = 34
LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "pyqtgraph")
DOCUMENTATION_SIZE = (1000, 720)
LIST_WIDTH = 168
WIDEST = 820
"""Maximum line width in pixels at the default text size: longer lines are hard to read."""

Rows = list[tuple[str, str]]


class _TableDialog(QDialog):
    """Headings with two-column rows, and a close button."""

    def __init__(self, title: str, intro: str, sections: dict[str, Rows]) -> None:
        super().__init__()
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.sections = sections
        text = QLabel(intro)
        text.setWordWrap(True)
        text.setHidden(not intro)
        close = button("Close", self.accept)
        close.setDefault(True)
        self.buttons = hbox(STRETCH, close)
        margins = (SPACE_6, SPACE_4, SPACE_6, SPACE_4)
        tables = self._make_tables()
        vbox(text, (tables, 1), self.buttons, of=self, spacing=SPACE_4, margins=margins)
        self._fit()
        theme_notifier().changed.connect(self._fit)

    def add_button(self, text: str, do: Callable[[], object], tip: str = "") -> None:
        """Add a button before the close button."""
        added = button(text, do, tip)
        added.setAutoDefault(False)
        self.buttons.insertWidget(1, added)

    def text(self) -> str:
        lines = []
        for title, rows in self.sections.items():
            lines += [title, *(f"  {name}: {value}" for name, value in rows)]
        return "\n".join(lines)

    def _make_tables(self) -> QScrollArea:
        """The tables in columns; they scroll if the screen is too small."""
        content = dressed(QWidget(), bare=True)
        parts = in_columns(self.sections)
        columns = [(vbox(_make_table(part), STRETCH, spacing=-1), 1) for part in parts]
        hbox(*columns, of=content, spacing=2 * SPACE_6, margins=(SPACE_2,) * 4)
        area = scroll_area(content, self.windowTitle())
        area.setProperty("bare", True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        scroll_by_keys(area)
        self._area, self._content = area, content
        return area

    def _fit(self) -> None:
        """As large as the tables, within the screen."""
        for one in (self._area, *self._content.findChildren(QLabel)):
            one.ensurePolished()  # its ring, and its own font, need room
        bar, frame = self._area.verticalScrollBar().sizeHint().width(), 2 * self._area.frameWidth()
        layout = self.layout()
        assert layout is not None
        layout.activate()
        beside = layout.sizeHint() - self._area.sizeHint()
        wanted = self._content.sizeHint() + QSize(bar + frame, frame) + beside
        self.resize(wanted.boundedTo(self.screen().availableSize() - QSize(*FRAME)))


def _make_table(sections: Mapping[str, Rows]) -> QGridLayout:
    grid = QGridLayout()
    grid.setHorizontalSpacing(SPACE_6)
    grid.setVerticalSpacing(SPACE_1)
    row = 0
    for title, rows in sections.items():
        heading = label(title, "small")
        if row:
            grid.setRowMinimumHeight(row, SPACE_2)
            row += 1
        grid.addWidget(heading, row, 0, 1, 2)
        row += 1
        for name, value in rows:
            shown = QLabel(value)
            shown.setFont(mono_font("small"))
            shown.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            grid.addWidget(QLabel(name), row, 0)
            grid.addWidget(shown, row, 1)
            row += 1
    grid.setColumnStretch(1, 1)
    return grid


def in_columns(sections: Mapping[str, Rows]) -> list[dict[str, Rows]]:
    """The sections in order, in as many columns as needed."""
    columns: list[dict[str, Rows]] = [{}]
    height = 0
    for title, rows in sections.items():
        if height and height + len(rows) > ROWS_A_COLUMN:
            columns.append({})
            height = 0
        columns[-1][title] = rows
        height += len(rows) + 2  # its heading, and the space before the next
    return columns


class ShortcutsDialog(_TableDialog):
    def __init__(self, commands: CommandRegistry) -> None:
        super().__init__("Keyboard shortcuts", "", {**commands.shortcuts(), "Charts": KEYS})
        if CHANGE_KEYS in commands:
            self._change = commands.action(CHANGE_KEYS)
            self.add_button("Change…", self._change_keys, "Customize keyboard shortcuts")

    def _change_keys(self) -> None:
        self.accept()
        self._change.trigger()


class AboutDialog(_TableDialog):
    def __init__(self) -> None:
        super().__init__(
            f"About Inferdeck {program_version()}",
            "A desktop application for LLM inference with its own engine: paged KV cache and "
            "continuous batching. Apache License 2.0.",
            {
                "Versions": versions(),
                "Folders": [
                    ("Chats", str(data_dir())),
                    ("Settings", str(config_dir())),
                    ("Log", str(log_file())),
                    ("Crash reports", str(reports_dir())),
                ],
            },
        )
        self.add_button("Copy", lambda: QGuiApplication.clipboard().setText(self.text()))


def versions() -> list[tuple[str, str]]:
    """Versions of the program and its libraries, without importing them."""
    rows = [
        ("Inferdeck", program_version()),
        ("Python", sys.version.split()[0]),
        ("Qt", qVersion()),
        ("System", f"{platform.system()} {platform.release()}"),
    ]
    for name in LIBRARIES:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    return rows


class DocumentationDialog(QDialog):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Documentation")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.documents = documents()
        self.list = dressed(QListWidget(), "Documents")
        self.list.addItems([document.title for document in self.documents])
        self.text = MessageText()
        self.text.setAccessibleName("Document")
        self.text.link_activated.connect(self._follow)
        content = dressed(QWidget(), bare=True)
        vbox(self.text, STRETCH, of=content, margins=(SPACE_4, SPACE_3, SPACE_6, SPACE_6))
        self.area = scroll_area(content)
        scroll_by_keys(self.area)
        margins = (SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        hbox(self.list, (self.area, 1), of=self, spacing=SPACE_3, margins=margins)
        self._fit()
        theme_notifier().changed.connect(self._fit)
        self.list.currentRowChanged.connect(self._show)
        self.list.setCurrentRow(0)
        FittingSize(self, DOCUMENTATION_SIZE)

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
        """Documents link to each other by file name; other links open in the browser."""
        names = [document.path.name for document in self.documents]
        if link in names:
            self.list.setCurrentRow(names.index(link))
        else:
            QDesktopServices.openUrl(QUrl(link))


def show_documentation(window: QWidget) -> None:
    """Show the dialog of `window`, which has at most one."""
    dialog = window.findChild(DocumentationDialog) or DocumentationDialog(window)
    dialog.show()
    dialog.raise_()
    dialog.activateWindow()
