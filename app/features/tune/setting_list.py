"""`SettingList`: the setting rows in sections."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QWidget

from app.window.setting_specs import Machine, sections
from widgets.controls.layouts import STRETCH, dressed, vbox
from widgets.controls.setting_row import SettingRow
from widgets.theme.theme import SPACE_1, SPACE_3


class SettingList(QScrollArea):
    """All setting rows. `rows`: by setting name."""

    chosen = Signal(str, object)  # name, value
    refused = Signal(str, str)  # name, reason

    def __init__(self, machine: Machine) -> None:
        super().__init__(widgetResizable=True)
        dressed(self, "Engine settings", bare=True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the rows take the focus
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.rows: dict[str, SettingRow] = {}
        parts: list[QWidget] = []
        for title, specs in sections(machine).items():
            parts += [line(), dressed(QLabel(title), role="small")]
            for spec in specs:
                row = self.rows[spec.name] = SettingRow(spec)
                row.value_changed.connect(self.chosen)
                row.refused.connect(self.refused)
                parts.append(row)
        content = dressed(QWidget(), bare=True)
        margins = SPACE_3, SPACE_1, SPACE_3, SPACE_3
        vbox(*parts[1:], STRETCH, of=content, spacing=SPACE_3, margins=margins)
        self.setWidget(content)


def line() -> QFrame:
    """A separator."""
    return dressed(QFrame(), line=True)
