"""The rows of the engine's settings, in sections, one below the other."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QScrollArea, QVBoxLayout, QWidget

from app.panels.setting_specs import Machine, sections
from app.panels.settings_foot import line
from widgets.setting_row import SettingRow
from widgets.theme import SPACE_1, SPACE_3


class SettingList(QScrollArea):
    """`rows`: by the name of the setting."""

    chosen = Signal(str, object)  # name, value
    refused = Signal(str, str)  # name, why it was not taken

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.setAccessibleName("Engine settings")
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its rows have it
        self.rows: dict[str, SettingRow] = {}
        content = QWidget()
        content.setProperty("bare", True)
        layout = QVBoxLayout(content)
        layout.setContentsMargins(SPACE_3, SPACE_1, SPACE_3, SPACE_3)
        layout.setSpacing(SPACE_3)
        for number, (title, specs) in enumerate(sections(machine).items()):
            if number:
                layout.addWidget(line())
            heading = QLabel(title)
            heading.setProperty("role", "small")
            layout.addWidget(heading)
            for spec in specs:
                row = self.rows[spec.name] = SettingRow(spec)
                row.value_changed.connect(self.chosen)
                row.refused.connect(self.refused)
                layout.addWidget(row)
        layout.addStretch(1)
        self.setProperty("bare", True)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWidget(content)
