"""`ModelSwitcher`: recent models below the open model's name, opened with their last settings.

[ Search recent models                ]
Qwen3-0.6B    1.11 GiB · BF16 · active      14:05
Llama-3.2-1B  700 MiB · INT4 weights    yesterday
Open model…
Models page
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.models.session import ModelSession
from app.link.bridge import EngineBridge, EngineState
from app.storage.model_sources import folder_source
from app.window.settings_store import RecentModel, SettingsStore
from engine.units import bytes_text, date_text
from widgets.live.strip import StatStrip
from widgets.palette.palette import Entry, Palette
from widgets.theme.theme import SPACE_1

CANCEL, FOLDER, PAGE = "cancel", "folder", "page"
TYPED = "open:"
"""Prefix of the id of a typed path."""


class ModelSwitcher(Palette):
    """Type to filter, Enter opens. The title of `strip` becomes its button; `show_models`: shows
    the Models page."""

    def __init__(
        self,
        settings: SettingsStore,
        session: ModelSession,
        bridge: EngineBridge,
        strip: StatStrip,
        window: QWidget,
        show_models: Callable[[], object],
    ) -> None:
        hint, nothing = "Search recent models, or enter a path", "No recent model matches"
        super().__init__(window, "Models", hint, nothing)
        self._settings, self._session, self._bridge = settings, session, bridge
        self._below = strip.add_switch(self.toggle, "model.open")
        self._show_models = show_models
        self.chosen.connect(self._act)

    def toggle(self) -> None:
        self.open(self.choices())

    def choices(self) -> list[Entry]:
        """Cancel while a model loads; recent models, newest first; ways to others."""
        is_loading = self._bridge.state is EngineState.LOADING
        title = self._session.opening_title
        cancel = [Entry(CANCEL, f"Cancel loading {title}", "")] if is_loading else []
        models = [_entry(place, model, self._session.current, time.time())
                  for place, model in enumerate(self._settings.recent)]  # fmt: skip
        return [
            *cancel, *models, Entry(FOLDER, "Open model…", "choose a folder"),
            Entry(PAGE, "Models page", "all models, Hugging Face Hub"),
        ]  # fmt: skip

    def in_order(self, entries: list[Entry]) -> list[Entry]:
        return entries

    def typed(self, query: str) -> list[Entry]:
        """The folder that a path names, or the one of its file."""
        path = os.path.expanduser(query)
        if not os.path.isabs(path):
            return []
        folder = folder_source(path).path
        is_there = Path(folder).is_dir()
        why_not = "" if is_there else "Folder not found"
        return [Entry(TYPED + folder, f"Open folder {folder}", "", "", is_there, False, why_not)]

    def corner(self) -> QPoint:
        place = self._below.mapTo(self.window(), QPoint(0, self._below.height() + SPACE_1))
        right = self.window().width() - self.width() - SPACE_1
        return QPoint(max(SPACE_1, min(place.x(), right)), place.y())

    def _act(self, choice: str) -> None:
        if choice == CANCEL:
            self._bridge.cancel_load()
        elif choice == FOLDER:
            self._choose_folder()
        elif choice.startswith(TYPED):
            self._open_folder(choice.removeprefix(TYPED))
        elif choice == PAGE:
            self._show_models()
        else:
            model = self._settings.recent[int(choice)]
            self._session.open(model.path, model.load_format)

    def _open_folder(self, path: str) -> None:
        """One without a model is shown on the Models page, with the reason."""
        if (Path(path) / "config.json").is_file():
            self._session.open(path)
        else:
            self._session.wants_model.emit(path)

    def _choose_folder(self) -> None:
        dialog = QFileDialog(self.window(), "Open model")
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(self._session.wants_model)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()


def _entry(place: int, model: RecentModel, current: RecentModel | None, now: float) -> Entry:
    is_there = Path(model.path).exists()
    size = bytes_text(model.weights_bytes) if model.weights_bytes else ""
    random = "random weights" if model.load_format == "dummy" else ""
    return Entry(
        str(place), model.title, " · ".join(filter(None, (size, model.precision, random))),
        date_text(model.used, now) if model.used else "", is_there,
        current is not None and model.is_same(current), "" if is_there else "Folder not found",
    )  # fmt: skip
