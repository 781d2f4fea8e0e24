"""The dialogs of the main window's commands: palette, shortcuts, about."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QDialog

from app.features.preferences.controller import SETTING, SettingsController
from app.main.main_window import MainWindow
from app.window.help_dialogs import AboutDialog, ShortcutsDialog
from widgets.palette.palette import Palette

PALETTE = "help.palette"


class Dialogs(QObject):
    """Opens each dialog over `window`."""

    def __init__(self, window: MainWindow, preferences: SettingsController) -> None:
        super().__init__(window)
        self._window, self._preferences = window, preferences
        self.palette = Palette(window)
        self.palette.chosen.connect(self._on_chosen)

    def show_palette(self) -> None:
        """Find a command or a setting by its words."""
        commands = (e for e in self._window.commands.entries() if e.id != PALETTE)
        self.palette.open(commands, self._preferences.entries())

    def show_shortcuts(self) -> None:
        self._open(ShortcutsDialog(self._window.commands))

    def show_about(self) -> None:
        self._open(AboutDialog())

    def _open(self, dialog: QDialog) -> None:
        dialog.setParent(self._window, dialog.windowFlags())
        dialog.open()

    def _on_chosen(self, chosen: str) -> None:
        if chosen.startswith(SETTING):
            self._preferences.show_setting(chosen.removeprefix(SETTING))
        else:
            self._window.commands.run(chosen)
