"""Model session: the open model, its notices, and how to open it again.

Connects the engine bridge, the stored settings and the notices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.features.models.model_card import DUMMY_NOTE, STARTER_NOTE
from app.features.models.precision import precision_text
from app.link.bridge import EngineBridge
from app.managed.launch import parallel_flags
from app.storage.model_sources import is_starter, model_title
from app.window.notices import Notice, error_notice
from app.window.settings_store import RecentModel, SettingsStore, chosen_settings
from engine import messages
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.units import rough_duration

log = logging.getLogger(__name__)

LOAD, ENGINE, DRAFT, LINK = "load", "engine", "draft", "link"
ROOM, AHEAD = "room", "ahead"
"""Keys of the notices: loading, engine, draft model, attached engine, memory."""


class ModelSession(QObject):
    """Opens models and stores them. A model of an attached engine has a name instead of a path and
    is not stored; opening a local model detaches first."""

    opening = Signal(object)  # chosen settings of the model that is loading
    opened = Signal(object, object)  # running EngineConfig, chosen settings
    remark = Signal(object)  # Notice | None: about the open model
    notice = Signal(object)  # Notice
    notice_gone = Signal(str)  # its key
    wants_model = Signal(str)  # a path to look at, or ""
    already_open = Signal(str)  # title of a model that the user asked for
    parallel_skipped = Signal(str, object)  # what has parallel sizes, vLLM's flags for them

    def __init__(self, bridge: EngineBridge, store: SettingsStore) -> None:
        super().__init__()
        self._bridge, self._store = bridge, store
        self._opening: EngineConfig | None = None
        self._is_stalled = False
        self._remote: EngineConfig | None = None  # that an attached engine serves and offers
        self.current: RecentModel | None = None
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)
        bridge.unloaded.connect(self._on_unloaded)
        bridge.crashed.connect(self._on_crashed)
        bridge.stalled_changed.connect(self._on_stalled)
        bridge.made_room.connect(self._on_made_room)

    # What the user does ------------------------------------------------------------------------

    def open(
        self, path: str, load_format: str = "auto", settings: Mapping[str, Any] | None = None
    ) -> None:
        """Load a model with `settings`; None: its stored ones. One that is open with them stays."""
        if settings is None:
            settings = self._store.settings_of(path, load_format)
        if self.is_open_with(path, load_format, settings):
            assert self.current is not None
            self.already_open.emit(self.current.title)
        else:
            self.load(RecentModel(path, load_format, settings=settings).config())

    def load(self, config: EngineConfig) -> None:
        log.info("loading %s", config)
        for key in (LOAD, ENGINE, DRAFT):
            self.notice_gone.emit(key)
        self._detach(config)
        self._bridge.turn_to_next()
        self._opening = config
        self._bridge.load(config)
        self.opening.emit(chosen_settings(config))

    def _detach(self, config: EngineConfig) -> None:
        """An attached engine cannot read this machine's folders."""
        offers, place = self._bridge.offers, self._bridge.place
        if offers is None or config.model in offers:
            return
        self._bridge.detach()
        title = model_title(config.model)
        self.notice.emit(
            Notice(LINK, f"Detached from {place}. {title} will load on this machine.",
                   "The detached engine keeps running. Reattach to view it.")
        )  # fmt: skip

    def restart(self) -> None:
        """Reload the model that was open or loading when the engine crashed or hung."""
        config = self.current.config() if self.current is not None else self._opening
        if config is None and self._bridge.is_remote:
            config = self._remote
        if config is not None:
            self.load(config)

    def unload(self) -> None:
        self._bridge.unload()

    def remember_settings(self, settings: Mapping[str, Any]) -> None:
        """The user changed settings of the open model."""
        if self.current is not None:
            self.current = replace(self.current, settings=dict(settings), **self._facts())
            self._remember()

    def _remember(self) -> None:
        if self.current is not None and self._bridge.offers is None:
            self._store.remember_model(self.current)

    def is_open(self, path: str) -> bool:
        return self.current is not None and self.current.path == path

    def is_open_with(self, path: str, load_format: str, settings: Mapping[str, Any]) -> bool:
        """Whether this model is open with these settings."""
        asked, current = RecentModel(path, load_format, settings=settings), self.current
        is_here = self._bridge.is_ready and self._bridge.offers is None
        if current is None or not is_here or not current.is_same(asked):
            return False
        return current.config() == asked.config()

    def _facts(self) -> dict[str, Any]:
        """What the list of recent models shows of the open one."""
        model, config = self._bridge.model, self._bridge.config
        if model is None or config is None:
            return {}
        return {"weights_bytes": model.weights_bytes, "used": time.time(),
                "precision": precision_text(model, config)}  # fmt: skip

    @property
    def latest(self) -> RecentModel | None:
        """The local model that is loading, else the open one."""
        if self._bridge.offers is not None:
            return None
        opening = self._opening
        if opening is None:
            return self.current
        return RecentModel(opening.model, opening.load_format, settings=chosen_settings(opening))

    @property
    def opening_title(self) -> str:
        """Title of the loading model."""
        return model_title(self._opening.model) if self._opening is not None else "the model"

    # What the engine says ----------------------------------------------------------------------

    def _on_loaded(self, event: messages.Loaded) -> None:
        log.info("loaded %s, %s on %s", event.model.name, event.config.dtype, event.config.device)
        opening, self._opening = self._opening, None
        if self._bridge.is_remote:  # paths and settings of another machine
            is_offered = event.config.model in (self._bridge.offers or ())
            self._remote = event.config if is_offered else None
            self.opened.emit(event.config, {})
            return
        if opening is not None:
            name = event.model.name
            chosen = chosen_settings(opening)
            stored = self._store.settings_of(opening.model, opening.load_format)
            if flags := parallel_flags(stored):
                self.parallel_skipped.emit(f"Last settings of {name}", flags)
            self.current = RecentModel(
                opening.model, opening.load_format, name, chosen, **self._facts()
            )
            self._remember()
        elif self.current is None or self._bridge.offers is not None:
            # opened by an attached engine
            config = event.config
            self.current = RecentModel(
                config.model, config.load_format, event.model.name, chosen_settings(config)
            )
        # else the previous model was restored after a failure: `current` is right
        self.opened.emit(event.config, self.current.settings)
        self._show_notices(event)

    def _show_notices(self, event: messages.Loaded) -> None:
        if event.without_draft is not None:
            title = "Speculative decoding is off: the draft model failed to load."
            self.notice.emit(error_notice(DRAFT, title, event.without_draft))
        remarks = " ".join(event.model.notices)
        is_remote = self._bridge.offers is not None
        if not is_remote and is_starter(event.config.model):
            look = ("Open a model…", lambda: self.wants_model.emit(""))
            self.remark.emit(Notice("model", STARTER_NOTE, remarks, actions=(look,)))
        elif not is_remote and event.model.is_dummy:
            self.remark.emit(Notice("model", DUMMY_NOTE, remarks))
        else:
            self.remark.emit(Notice("model", remarks) if remarks else None)

    def _on_load_failed(self, event: messages.LoadFailed) -> None:
        failed, self._opening = self._opening, None
        log.warning("load failed: %s", event.error)
        if event.cancelled:
            text = f"{model_title(event.serving)} remains loaded." if event.serving else ""
            self.notice.emit(Notice(LOAD, "Loading cancelled.", text))
        else:
            self.notice.emit(
                error_notice(
                    LOAD,
                    f"{model_title(failed.model)} failed to load." if failed is not None else "",
                    event.error,
                    *self._actions(failed),
                )
            )
        if event.serving is None:
            self.current = None
            self.remark.emit(None)
        elif self.current is not None and self._bridge.config is not None:
            self.opened.emit(self._bridge.config, self.current.settings)

    def _actions(self, failed: EngineConfig | None) -> list[tuple[str, Any]]:
        if failed is None:
            return []
        ways: list[tuple[str, Any]] = []
        if chosen_settings(failed):
            plain = EngineConfig(model=failed.model, load_format=failed.load_format)
            ways.append(("Load with defaults", lambda: self.load(plain)))
        ways.append(("Open a model…", lambda: self.wants_model.emit(failed.model)))
        return ways

    def _on_unloaded(self) -> None:
        self.current = self._opening = None
        self.remark.emit(None)

    def _on_made_room(self, event: messages.MadeRoom) -> None:
        remedy = "Close other programs, or reduce Memory utilization or KV cache size."
        if event.is_smaller:
            remedy = (
                "Close other programs to free memory. To rebuild the KV cache, change Memory "
                "utilization or KV cache size, or reload the model."
            )
        key = ROOM if event.is_smaller else AHEAD
        self.notice.emit(Notice(key, event.text, remedy, is_sequel=event.times > 1))

    def _on_stalled(self, event: messages.Stalled | None) -> None:
        was_stalled, self._is_stalled = self._is_stalled, event is not None
        if event is None:
            self.notice_gone.emit(ENGINE)
            return
        log.warning("the engine has not answered for %.0f s (%s)", event.seconds, event.doing)
        cause = f"The engine has not answered for {rough_duration(event.seconds)} ({event.doing})."
        restart = ("Restart engine", self.restart)
        remedy = "Wait, or restart the engine. A restart aborts all requests."
        if self._bridge.look_only:
            notice = Notice(ENGINE, cause, self._bridge.look_only, "warning")
        else:
            notice = Notice(ENGINE, cause, remedy, "warning", actions=(restart,))
        self.notice.emit(replace(notice, is_sequel=was_stalled))

    def _on_crashed(self, event: messages.EngineCrashed) -> None:
        log.error("the engine crashed\n%s", event.traceback)
        self.remark.emit(None)
        if event.is_restarting:
            return
        self.notice.emit(
            error_notice(
                ENGINE,
                "The engine crashed.",
                event.error,
                ("Restart engine", self.restart),
                traceback=event.traceback,
            )
        )


def config_from_arguments(
    store: SettingsStore, default_model: str, given: Mapping[str, Any]
) -> EngineConfig:
    """The configuration at start: the command line's model, else the last one, else
    `default_model`. `given` overrides stored settings.

    Raises ConfigError for an invalid combination.
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

