"""The menu of the models that were opened last."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtWidgets import QMenu, QWidget

from app.models.session import ModelSession
from app.settings_store import RecentModel, SettingsStore


class RecentMenu(QMenu):
    """Newest first; what is not there any more cannot be chosen."""

    def __init__(self, settings: SettingsStore, session: ModelSession, parent: QWidget) -> None:
        super().__init__("Recent models", parent)
        self.setToolTipsVisible(True)
        self._settings, self._session = settings, session
        session.recent_changed.connect(self.fill)
        self.fill()

    def fill(self) -> None:
        """Make the entries anew."""
        self.clear()
        for model in self._settings.recent:
            suffix = " (random weights)" if model.load_format == "dummy" else ""
            action = self.addAction(f"{model.title}{suffix}".replace("&", "&&"))
            action.setToolTip(model.path)
            action.setEnabled(Path(model.path).exists())
            action.triggered.connect(partial(self._open, model))
        self.setEnabled(not self.isEmpty())

    def _open(self, model: RecentModel, *_: object) -> None:
        self._session.open(model.path, model.load_format)
