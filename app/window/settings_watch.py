"""`SettingsWatch`: a notice, once, where the settings file cannot be written."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer

from app.window.notices import Notice
from app.window.settings_store import SettingsStore

INTERVAL_MS = 2000


class SettingsWatch(QObject):
    """QSettings writes by itself, some time after a change, and reports no error: its status is
    looked at. That costs no access to the disk."""

    def __init__(
        self,
        settings: SettingsStore,
        show: Callable[[Notice], object],
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._settings, self._show = settings, show
        self._timer = QTimer(self, interval=INTERVAL_MS)
        self._timer.timeout.connect(self.look)
        self._timer.start()

    def look(self) -> None:
        error = self._settings.unwritten
        if error is not None:
            self._timer.stop()
            self._show(Notice("settings-unwritten", error.cause, error.remedy, "warning"))
