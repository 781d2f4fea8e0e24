"""Help: the shortcuts, made from the registry of commands, and what this program is."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from PySide6.QtCore import Qt, qVersion
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout

from app.commands import CommandRegistry
from app.crash.report import reports_dir
from app.log import log_file
from app.paths import config_dir, data_dir
from app.version import program_version
from widgets.theme import SPACE_1, SPACE_2, SPACE_4, SPACE_6, mono_font

CHANGE_KEYS = "app.keyboard"
LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "pyqtgraph")


class _TableDialog(QDialog):
    """Headings with rows of two columns, and a button that closes."""

    def __init__(self, title: str, intro: str, sections: dict[str, list[tuple[str, str]]]) -> None:
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
        layout.addLayout(self._make_table())
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

    def _make_table(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_6)
        grid.setVerticalSpacing(SPACE_1)
        row = 0
        for title, rows in self.sections.items():
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


class ShortcutsDialog(_TableDialog):
    def __init__(self, commands: CommandRegistry) -> None:
        super().__init__("Keyboard shortcuts", "", commands.shortcuts())
        if CHANGE_KEYS in commands:
            change = QPushButton("Change…")
            change.setToolTip("Give other keys to any command")
            change.setAutoDefault(False)
            change.clicked.connect(self.accept)
            change.clicked.connect(commands.action(CHANGE_KEYS).trigger)
            self.buttons.insertWidget(1, change)


class AboutDialog(_TableDialog):
    def __init__(self) -> None:
        super().__init__(
            f"About Inferdeck {program_version()}",
            "A desktop workstation for LLM inference with its own paged, continuously batching "
            "engine. Apache License 2.0.",
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
    """Of the program and what it stands on; none of it is imported for that."""
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
