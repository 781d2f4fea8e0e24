"""Help dialogs: keyboard shortcuts and About."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib import metadata

from PySide6.QtCore import QSize, Qt, qVersion
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.log import log_file
from app.paths import config_dir, data_dir, program_version
from app.window.commands import CommandRegistry
from app.window.crash_report import reports_dir
from widgets.controls.frames import scroll_by_keys
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, SPACE_6, mono_font

CHANGE_KEYS = "app.keyboard"
MOST_OF_SCREEN = 0.85
ROWS_A_COLUMN = 34
LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "pyqtgraph")

Rows = list[tuple[str, str]]


class _TableDialog(QDialog):
    """Headings with rows of two columns, and a button that closes."""

    def __init__(self, title: str, intro: str, sections: dict[str, Rows]) -> None:
        super().__init__()
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.sections = sections
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_6, SPACE_4, SPACE_6, SPACE_4)
        layout.setSpacing(SPACE_4)
        if intro:
            text = QLabel(intro)
            text.setWordWrap(True)
            layout.addWidget(text)
        layout.addWidget(self._make_tables(), 1)
        self.buttons = QHBoxLayout()
        self.buttons.setSpacing(SPACE_2)
        self.buttons.addStretch(1)
        close = QPushButton("Close")
        close.setDefault(True)
        close.clicked.connect(self.accept)
        self.buttons.addWidget(close)
        layout.addLayout(self.buttons)

    def text(self) -> str:
        """Everything as plain text."""
        lines = []
        for title, rows in self.sections.items():
            lines += [title, *(f"  {name}: {value}" for name, value in rows)]
        return "\n".join(lines)

    def _make_tables(self) -> QScrollArea:
        """In columns; scrolls if the screen is too small."""
        content = QWidget()
        content.setProperty("bare", True)
        row = QHBoxLayout(content)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(2 * SPACE_6)
        for part in in_columns(self.sections):
            column = QVBoxLayout()
            column.addLayout(self._make_table(part))
            column.addStretch(1)
            row.addLayout(column, 1)
        area = QScrollArea()
        area.setProperty("bare", True)
        area.setFrameShape(QScrollArea.Shape.NoFrame)
        area.setWidgetResizable(True)
        area.setWidget(content)
        area.setAccessibleName(self.windowTitle())
        scroll_by_keys(area)
        room = QGuiApplication.primaryScreen().availableSize() * MOST_OF_SCREEN
        for label in content.findChildren(QLabel):
            label.ensurePolished()  # in its own font it is wider
        bar = area.verticalScrollBar().sizeHint().width()
        wanted = content.sizeHint() + QSize(bar, 0)
        area.setMinimumSize(wanted.boundedTo(room))
        return area

    @staticmethod
    def _make_table(sections: Mapping[str, Rows]) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_6)
        grid.setVerticalSpacing(SPACE_1)
        row = 0
        for title, rows in sections.items():
            heading = QLabel(title)
            heading.setProperty("role", "small")
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
        super().__init__("Keyboard shortcuts", "", commands.shortcuts())
        if CHANGE_KEYS in commands:
            change = QPushButton("Change…")
            change.setToolTip("Change the keys of any command")
            change.setAutoDefault(False)
            change.clicked.connect(self.accept)
            change.clicked.connect(commands.action(CHANGE_KEYS).trigger)
            self.buttons.insertWidget(1, change)


class AboutDialog(_TableDialog):
    def __init__(self) -> None:
        super().__init__(
            f"About Inferdeck {program_version()}",
            "A desktop workstation for LLM inference. Its own engine has a paged KV cache and "
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
        copy = QPushButton("Copy")
        copy.setAutoDefault(False)
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text()))
        self.buttons.insertWidget(1, copy)


def versions() -> list[tuple[str, str]]:
    """Of the program and its libraries, without importing them."""
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
