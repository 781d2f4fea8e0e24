"""`ProfileMenu`: apply, save and delete named settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QInputDialog, QMenu, QWidget

from app.storage.profiles import Profile, ProfileError, ProfileStore
from app.window.notices import Notice, error_notice

NOTICE = "profile"


class ProfileMenu(QMenu):
    """`chosen(Profile)`; `reset`: restore the defaults. `settings`: the current choices, None
    without a model."""

    chosen = Signal(object)
    reset = Signal()
    notice = Signal(object)  # Notice

    def __init__(
        self,
        store: ProfileStore,
        settings: Callable[[], Mapping[str, Any] | None],
        parent: QWidget | None = None,
        *,
        refusal: Callable[[], str] = str,
    ) -> None:
        """`refusal`: why settings cannot be changed, or ""."""
        super().__init__("Profiles", parent)
        self._store, self._settings, self._refusal = store, settings, refusal
        self.setToolTipsVisible(True)
        self.aboutToShow.connect(self.fill)

    def fill(self) -> None:
        self.clear()
        now = self._settings()
        first = self.addAction("Defaults", self.reset.emit)
        refusal = self._refusal()
        first.setToolTip(refusal or "Reset all changed settings to their defaults.")
        first.setEnabled(bool(now) and not refusal)
        self.addSeparator()
        for profile in self._store.profiles:
            action = self.addAction(_plain(profile.name))
            action.setCheckable(True)
            action.setChecked(now is not None and dict(profile.settings) == dict(now))
            action.setEnabled(now is not None and not refusal)
            action.setToolTip(refusal or summary(profile))
            action.triggered.connect(partial(self._choose, profile))
        if not self._store.profiles:
            self.addAction("No saved profiles").setEnabled(False)
        self.addSeparator()
        self.addAction("Save profile…", self.ask_name).setEnabled(now is not None)
        delete = self.addMenu("Delete profile")
        delete.setEnabled(bool(self._store.profiles))
        for profile in self._store.profiles:
            delete.addAction(_plain(profile.name)).triggered.connect(partial(self._delete, profile))

    def ask_name(self) -> None:
        dialog = QInputDialog(self.parentWidget())
        dialog.setWindowTitle("Save profile")
        dialog.setLabelText("Profile name (an existing profile with this name is replaced):")
        dialog.setOkButtonText("Save")
        dialog.textValueSelected.connect(self.save)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save(self, name: str) -> None:
        settings = self._settings()
        if settings is not None:
            self._is_done(self._store.save, Profile(name, dict(settings)))

    def _choose(self, profile: Profile, *_: object) -> None:
        self.chosen.emit(profile)

    def _delete(self, profile: Profile, *_: object) -> None:
        if not self._is_done(self._store.delete, profile.name):
            return
        undo = ("Undo", partial(self._is_done, self._store.save, profile))
        text = f"Deleted profile “{profile.name}”."
        self.notice.emit(Notice(NOTICE, text, actions=(undo,)))

    def _is_done(self, do: Callable[[Any], object], what: object) -> bool:
        try:
            do(what)
        except ProfileError as error:
            self.notice.emit(error_notice(NOTICE, "", error.info()))
            return False
        return True


def summary(profile: Profile) -> str:
    """One setting per line."""
    lines = [f"{name}: {value}" for name, value in profile.settings.items()]
    lines += [f"{name}: unknown setting" for name in profile.unknown]
    return "\n".join(lines) or "Defaults"


def _plain(text: str) -> str:
    return text.replace("&", "&&")
