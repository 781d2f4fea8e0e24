"""Settings, machine and versions of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from app.features.recording.file import Recording
from app.units import format_bytes
from engine.config import SETTINGS
from widgets.theme.theme import SPACE_2, figure_font, theme_notifier


class AboutTable(QTableWidget):
    """Settings, machine and versions of a recording."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(0, 2)
        self._config: Any = None
        self._about = _rows_of(recording.about)
        self.setAccessibleName("Settings, machine and versions of the recording")
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setProperty("bare", True)
        self.horizontalHeader().hide()
        self.horizontalHeader().setStretchLastSection(True)
        modes = QHeaderView.ResizeMode
        self.horizontalHeader().setSectionResizeMode(0, modes.ResizeToContents)
        self.verticalHeader().hide()
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)
        self._fill()

    def _take_fonts(self) -> None:
        self.setFont(figure_font("small"))
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_2)

    def show_config(self, config: Any) -> None:
        if config != self._config:
            self._config = config
            self._fill()

    def changes(self, config: Any) -> str:
        """The differences of another configuration, as text."""
        if self._config is None:
            return ""
        pairs = (
            (setting.label, getattr(self._config, name), getattr(config, name))
            for name, setting in SETTINGS.items()
        )
        return ", ".join(f"{label} {_value(a)} → {_value(b)}" for label, a, b in pairs if a != b)

    def _fill(self) -> None:
        rows = [*self._about]
        if self._config is not None:
            settings = [(SETTINGS[n].label, _value(getattr(self._config, n))) for n in SETTINGS]
            rows = [*settings, *rows]
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
        rows.append(("Memory", format_bytes(memory) if isinstance(memory, int) else "unknown"))
    if isinstance(versions, dict):
        rows += [(str(name), str(value)) for name, value in versions.items()]
    return rows


def _value(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)
