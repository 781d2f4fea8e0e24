"""The dialogs of the main window's commands: open a model, palette, shortcuts, about."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QDialog

from app.features.models.dialog import OpenModelDialog, show_dialog
from app.features.models.session import ModelSession
from app.features.preferences.controller import SETTING, SettingsController
from app.link.bridge import EngineBridge
from app.main.main_window import MainWindow
from app.window.help_dialogs import AboutDialog, ShortcutsDialog
from app.window.settings_store import SettingsStore
from widgets.palette.palette import Palette

PALETTE = "help.palette"


class Dialogs(QObject):
    """Opens each dialog over `window`; `model_dialog` is None while it is closed."""

    def __init__(
        self,
        window: MainWindow,
        settings: SettingsStore,
        bridge: EngineBridge,
        session: ModelSession,
        preferences: SettingsController,
    ) -> None:
        super().__init__(window)
        self._window, self._settings, self._bridge = window, settings, bridge
        self._session, self._preferences = session, preferences
        self.model_dialog: OpenModelDialog | None = None
        self.palette = Palette(window)
        self.palette.chosen.connect(self._on_chosen)

    def open_model(self, path: str = "") -> None:
        """Choose a model; `path`: the one to look at first."""
        if self.model_dialog is None:
            self.model_dialog = OpenModelDialog(
                self._settings, lambda: self._bridge.gives_back, parent=self._window
            )
            self.model_dialog.model_chosen.connect(self._session.open)
            self.model_dialog.finished.connect(self._on_model_dialog_closed)
            show_dialog(self.model_dialog)
        if path:
            self.model_dialog.choose_path(path)

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

    def _on_model_dialog_closed(self) -> None:
        self.model_dialog = None
