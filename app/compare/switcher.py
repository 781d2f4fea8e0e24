"""`Switcher`: makes the one engine of the window a side, the other side, and what it was again.

HOME --> LEFT --> RIGHT --> HOME     where neither side is what is loaded
LEFT --> RIGHT --> LEFT              where the left is (home is LEFT), and so for the right
"""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.compare.record import HOME, LEFT, RIGHT
from app.compare.way import Setup, agrees, is_same_model, whole_settings
from app.engine_bridge import EngineBridge
from app.models.session import ModelSession
from engine import messages
from engine.config import EngineConfig
from engine.errors import ErrorInfo


class Switcher(QObject):
    """`switched(ModelInfo, EngineConfig, seconds)`: the engine is `side` now. `failed(ErrorInfo)`:
    it is not `target`. `disturbed`: somebody else changed what a side is made of."""

    switched = Signal(object, object, float)
    failed = Signal(object)
    disturbed = Signal()

    def __init__(self, bridge: EngineBridge, session: ModelSession | None, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge, self._session = bridge, session
        self.side = self.target = self.home = LEFT
        self.is_switching = self.is_replacing = False
        self._is_watching = False
        self._settings: list[dict[str, Any]] = [{}, {}, {}]
        self._configs: list[EngineConfig] = []
        self._began = 0.0
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_refused)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)

    def begin(self, setups: tuple[Setup, Setup], loaded: EngineConfig) -> None:
        """The engine runs with `loaded`: as one of the sides, or as neither. Raises ConfigError."""
        known = self._session.current if self._session is not None else None
        home = known.config() if known is not None else loaded
        settings = whole_settings(setups, loaded)
        as_found = {name: getattr(loaded, name) for name in settings[LEFT]}
        places = [side for side in (LEFT, RIGHT) if setups[side].is_loaded(loaded)]
        self.side = self.target = self.home = places[0] if places else HOME
        configs = [setup.config(home) for setup in setups]
        self._configs, self._settings = [*configs, home], [*settings, as_found]
        self._configs[self.home], self._settings[self.home] = home, as_found
        self.is_switching = self.is_replacing = False
        self._is_watching = True

    def config(self, side: int) -> EngineConfig:
        """What an engine of this side is loaded with."""
        return self._configs[side]

    def to(self, side: int) -> None:
        self.target, self.is_switching = side, True
        self.is_replacing = not is_same_model(self._configs[self.side], self._configs[side])
        self._began = time.perf_counter()
        if not self.is_replacing:
            self._bridge.reconfigure(**self._settings[side])
        elif self._session is not None:
            self._session.load(self._configs[side])
        else:
            self._bridge.load(self._configs[side])

    def cancel(self) -> None:
        """Give up going to a side; the way back is gone to its end."""
        if self.is_switching and self.target != self.home:
            self._bridge.cancel_load()

    def end(self) -> None:
        self._is_watching = self.is_switching = self.is_replacing = False

    def _done(self, model: Any, config: EngineConfig) -> None:
        self.side, self.is_switching, self.is_replacing = self.target, False, False
        self.switched.emit(model, config, time.perf_counter() - self._began)

    def _not_done(self, error: ErrorInfo) -> None:
        self.is_switching = self.is_replacing = False
        self.failed.emit(error)

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if not self._is_watching or self.is_replacing:
            return
        if self.is_switching and agrees(event.config, self._settings[self.target]):
            self._done(event.model or self._bridge.model, event.config)
        elif not agrees(event.config, self._settings[self.side]):
            self.disturbed.emit()

    def _on_refused(self, event: messages.ReconfigureFailed) -> None:
        if self.is_switching and not self.is_replacing:
            self._not_done(event.error)

    def _on_loaded(self, event: messages.Loaded) -> None:
        if self.is_replacing:
            self._done(event.model, event.config)

    def _on_load_failed(self, event: messages.LoadFailed) -> None:
        if self.is_replacing:
            self._not_done(event.error)
