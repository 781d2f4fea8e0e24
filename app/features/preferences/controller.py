"""Opens the settings dialog; the palette lists its settings."""

from __future__ import annotations

from functools import partial

import shiboken6
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.features.preferences.catalog import all_sections
from app.features.preferences.dialog import SettingsDialog
from app.features.preferences.section_view import KEYBOARD
from app.features.tune.engine_settings import EngineSettingsPanel
from app.window.commands import Command, CommandRegistry
from app.window.program_settings import Preferences
from widgets.palette.palette import Entry

OPEN = "app.settings"
SETTING = "setting:"
"""Prefix of a setting's id in the palette."""


class SettingsController(QObject):
    """`engine_setting_wanted(name)`: show this row of the engine settings' panel."""

    engine_setting_wanted = Signal(str)

    def __init__(
        self,
        preferences: Preferences,
        panel: EngineSettingsPanel,
        registry: CommandRegistry,
        window: QWidget,
    ) -> None:
        super().__init__(window)
        self._panel, self._parts = panel, (preferences, panel, registry, window)
        self._dialog: SettingsDialog | None = None

    def commands(self) -> list[Command]:
        return [
            Command(OPEN, "Settings…", self.show, "File", "Ctrl+,", "settings", "settings"),
            Command(
                "app.keyboard", "Change keyboard shortcuts…", partial(self.show, KEYBOARD), "Help",
                section="help",
            ),
        ]  # fmt: skip

    @property
    def dialog(self) -> SettingsDialog | None:
        is_there = self._dialog is not None and shiboken6.isValid(self._dialog)
        return self._dialog if is_there else None

    def entries(self) -> list[Entry]:
        """Every setting as the palette shows it."""
        return [
            Entry(
                f"{SETTING}{entry.spec.name}", entry.spec.label,
                f"{section.group} setting · {section.title}", keywords=entry.text,
            )
            for section in all_sections(self._panel.machine)
            for entry in section.entries
        ]  # fmt: skip

    def show_setting(self, name: str) -> None:
        if name in self._panel.rows and self._panel.model.applied is not None:
            self.engine_setting_wanted.emit(name)
            return
        self.show()
        if self.dialog is not None:
            self.dialog.show_setting(name)

    def show(self, section: str = "") -> None:
        """Open the dialog, at a section if given."""
        dialog = self.dialog
        if dialog is None:
            dialog = self._dialog = SettingsDialog(*self._parts)
        if section:
            dialog.show_section(section)
        dialog.show()
        dialog.raise_()
        dialog.activateWindow()

    def close(self) -> None:
        dialog = self.dialog
        if dialog is not None:
            dialog.close()
