"""Settings, machine and versions of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from app.features.recording.file import Recording
from engine.config import SETTINGS
from engine.units import bytes_text, setting_text
from widgets.controls.tables import SmallFigures, dress_table


class AboutTable(QTableWidget):
    """Settings, machine and versions of a recording."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(0, 2)
        self.config: Any = None
        self._about = _rows_of(recording.about)
        dress_table(self, "Recorded settings, hardware and versions")
        SmallFigures(self)
        self.setProperty("padded", False)
        self.setProperty("bare", True)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        header = self.horizontalHeader()
        header.hide()
        header.setStretchLastSection(True)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        self._fill()

    def show_config(self, config: Any) -> None:
        if config != self.config:
            self.config = config
            self._fill()

    def _fill(self) -> None:
        rows = self._about
        if self.config is not None:
            values = [(one.label, getattr(self.config, name)) for name, one in SETTINGS.items()]
            rows = [*((label, setting_text(value)) for label, value in values), *rows]
        self.setRowCount(len(rows))
        for row, texts in enumerate(rows):
            for column, text in enumerate(texts):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                self.setItem(row, column, item)


def _rows_of(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The JSON header as rows; fields may be missing."""
    rows = [("Recorded", str(about.get("created", "unknown")))]
    machine, versions = about.get("machine"), about.get("versions")
    if isinstance(machine, dict):
        memory = machine.get("memory")
        rows.append(("Processor", str(machine.get("cpu", "unknown"))))
        rows.append(("Memory", bytes_text(memory) if isinstance(memory, int) else "unknown"))
    if isinstance(versions, dict):
        rows += [(str(name), str(value)) for name, value in versions.items()]
    return rows
