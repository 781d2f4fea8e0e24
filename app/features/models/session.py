"""Which model is open, what was said about it, and how to open it again.

Stands between the bridge, what the window remembers, and the notices: the window only shows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QMenu, QWidget

from app.features.models.model_card import DUMMY_NOTE, STARTER_NOTE
from app.link.bridge import EngineBridge
from app.storage.model_sources import is_starter, model_title
from app.window.notices import Notice, error_notice
from app.window.settings_store import RecentModel, SettingsStore, chosen_settings
from engine import messages
from engine.config import EngineConfig
from engine.errors import ConfigError

log = logging.getLogger(__name__)

LOAD, ENGINE, DRAFT, LINK = "load", "engine", "draft", "link"
ROOM, AHEAD = "room", "ahead"
"""Keys of the notices: about loading, about the engine, about its draft model, about the line to
an engine elsewhere, about memory that ran out."""


class ModelSession(QObject):
    """Opens models and remembers them. A model of an engine elsewhere has a name in place of a
    path, and is not remembered: what is opened from this machine leaves that engine first."""

    opened = Signal(object, object)  # EngineConfig that runs, settings that the user chose
    remark = Signal(object)  # Notice | None: what to know of the model that is open
    notice = Signal(object)  # Notice
    notice_gone = Signal(str)  # its key
    wants_dialog = Signal(str)  # a path to look at, or ""
    recent_changed = Signal()

    def __init__(
        self, bridge: EngineBridge, store: SettingsStore, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._store = store
        self._opening: EngineConfig | None = None
        self.current: RecentModel | None = None
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)
        bridge.unloaded.connect(self._on_unloaded)
        bridge.crashed.connect(self._on_crashed)
        bridge.made_room.connect(self._on_made_room)

    # What the user does ------------------------------------------------------------------------

    def open(
        self,
        path: str,
        load_format: str = "auto",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a model with `settings`; with what was chosen for it before where None."""
        if settings is None:
            settings = self._store.settings_of(path, load_format)
        self.load(RecentModel(path, load_format, settings=settings).config())

    def load(self, config: EngineConfig) -> None:
        log.info("loading %s", config)
        for key in (LOAD, ENGINE, DRAFT):
            self.notice_gone.emit(key)
        self._leave_engine_elsewhere(config)
        self._bridge.turn_to_next()
        self._opening = config
        self._bridge.load(config)

    def _leave_engine_elsewhere(self, config: EngineConfig) -> None:
        """It cannot read this machine's folders."""
        offers, place = self._bridge.offers, self._bridge.place
        if offers is None or config.model in offers:
            return
        self._bridge.detach()
        title = model_title(config.model)
        self.notice.emit(
            Notice(LINK, f"The window left {place}: {title} opens on this machine.",
                   "The engine there goes on. Attach again to see it.")
        )  # fmt: skip

    def restart(self) -> None:
        """Load the model again that was open, or being opened, when the engine crashed."""
        config = self.current.config() if self.current is not None else self._opening
        if config is not None:
            self.load(config)

    def unload(self) -> None:
        self._bridge.unload()

    def remember_settings(self, settings: Mapping[str, Any]) -> None:
        """The user changed settings of the open model."""
        if self.current is not None:
            known = self.current
            self.current = RecentModel(known.path, known.load_format, known.name, dict(settings))
            self._remember()

    def _remember(self) -> None:
        if self.current is not None and self._bridge.offers is None:
            self._store.remember_model(self.current)

    def is_open(self, path: str) -> bool:
        return self.current is not None and self.current.path == path

    @property
    def latest(self) -> RecentModel | None:
        """The model of this machine that is being opened, else the one that is open."""
        if self._bridge.offers is not None:
            return None
        opening = self._opening
        if opening is None:
            return self.current
        return RecentModel(opening.model, opening.load_format, settings=chosen_settings(opening))

    @property
    def opening_title(self) -> str:
        """The name of what is being loaded, for a sentence."""
        return model_title(self._opening.model) if self._opening is not None else "the model"

    # What the engine says ----------------------------------------------------------------------

    def _on_loaded(self, event: messages.Loaded) -> None:
        log.info("loaded %s, %s on %s", event.model.name, event.config.dtype, event.config.device)
        opening, self._opening = self._opening, None
        if self._bridge.is_remote:  # its paths and settings are those of another machine
            self.opened.emit(event.config, {})
            return
        if opening is not None:
            name = event.model.name
            chosen = chosen_settings(opening)
            self.current = RecentModel(opening.model, opening.load_format, name, chosen)
            self._remember()
            self.recent_changed.emit()
        elif self.current is None or self._bridge.offers is not None:
            # nobody opened it here: an engine elsewhere has it
            config = event.config
            self.current = RecentModel(
                config.model, config.load_format, event.model.name, chosen_settings(config)
            )
        # else the model before came back after a failure: `current` still tells of it
        self.opened.emit(event.config, self.current.settings)
        self._tell_about(event)

    def _tell_about(self, event: messages.Loaded) -> None:
        if event.without_draft is not None:
            title = "Speculative decoding is off: the draft model was not loaded."
            self.notice.emit(error_notice(DRAFT, title, event.without_draft))
        look = ("Open a model…", lambda: self.wants_dialog.emit(""))
        remarks = " ".join(event.model.notices)
        if self._bridge.offers is not None:
            self.remark.emit(Notice("model", remarks) if remarks else None)
        elif is_starter(event.config.model):
            self.remark.emit(Notice("model", STARTER_NOTE, remarks, actions=(look,)))
        elif event.model.is_dummy:
            self.remark.emit(Notice("model", DUMMY_NOTE, remarks))
        else:
            self.remark.emit(Notice("model", remarks) if remarks else None)

    def _on_load_failed(self, event: messages.LoadFailed) -> None:
        failed, self._opening = self._opening, None
        log.warning("not loaded: %s", event.error)
        if event.cancelled:
            text = f"{model_title(event.serving)} is still open." if event.serving else ""
            self.notice.emit(Notice(LOAD, "Loading was cancelled.", text))
        else:
            self.notice.emit(
                error_notice(
                    LOAD,
                    f"{model_title(failed.model)} was not loaded." if failed is not None else "",
                    event.error,
                    *self._ways_out(failed),
                )
            )
        if event.serving is None:
            self.current = None
            self.remark.emit(None)
        elif self.current is not None and self._bridge.config is not None:
            self.opened.emit(self._bridge.config, self.current.settings)

    def _ways_out(self, failed: EngineConfig | None) -> list[tuple[str, Any]]:
        if failed is None:
            return []
        ways: list[tuple[str, Any]] = []
        if chosen_settings(failed):
            plain = EngineConfig(model=failed.model, load_format=failed.load_format)
            ways.append(("Load with defaults", lambda: self.load(plain)))
        ways.append(("Open a model…", lambda: self.wants_dialog.emit(failed.model)))
        return ways

    def _on_unloaded(self) -> None:
        self.current = self._opening = None
        self.remark.emit(None)

    def _on_made_room(self, event: messages.MadeRoom) -> None:
        if event.is_smaller:
            key, remedy = ROOM, (
                "Close other programs on the device. To rebuild the KV cache, change Memory "
                "utilization or KV cache size, or reload the model."
            )
        else:
            key, remedy = AHEAD, (
                "Close other programs on the device, or lower Memory utilization or KV cache size."
            )
        self.notice.emit(Notice(key, event.text, remedy, is_sequel=event.times > 1))

    def _on_crashed(self, event: messages.EngineCrashed) -> None:
        log.error("the engine crashed\n%s", event.traceback)
        self.remark.emit(None)
        self.notice.emit(
            error_notice(
                ENGINE,
                "The engine stopped.",
                event.error,
                ("Restart engine", self.restart),
                traceback=event.traceback,
            )
        )


def config_from_arguments(
    store: SettingsStore, default_model: str, given: Mapping[str, Any]
) -> EngineConfig:
    """What to open at the start: what the command line names, else the model opened last, else
    the one that comes with the program. `given` wins over what was chosen before.

    Raises ConfigError for a combination that is not allowed.
    """
    values = dict(given)
    model = values.pop("model", None)
    load_format = values.pop("load_format", None)
    if model is None:
        last = next((m for m in store.recent if Path(m.path).exists()), None)
        known = last or RecentModel(default_model)
        if load_format is not None and load_format != known.load_format:
            known = RecentModel(known.path, load_format)
    else:
        path = str(Path(model).expanduser())
        load_format = load_format or "auto"
        known = RecentModel(path, load_format, settings=store.settings_of(path, load_format))
    try:
        return known.config().replace(**values)
    except ConfigError:
        return RecentModel(known.path, known.load_format).config().replace(**values)


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
