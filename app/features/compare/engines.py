"""Engines of a comparison: a second one beside the main engine, and the main engine as either
side."""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.compare.placement import Setup, agrees, is_same_model, whole_settings
from app.features.compare.record import HOME, LEFT, SIDES
from app.features.models.session import ModelSession
from app.link.bridge import EngineBridge
from engine import messages
from engine.config import EngineConfig
from engine.errors import ErrorInfo

_END_S = 5.0


class SecondEngine(QObject):
    """An engine that runs beside the main one. It ends once `bridge` has unloaded its model."""

    def __init__(self, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        self.bridge = bridge
        # not within a signal of what it ends
        bridge.unloaded.connect(lambda: QTimer.singleShot(0, self, self.end))

    def let_go(self) -> None:
        """Unload the model, then end, without waiting."""
        self.bridge.cancel_load()
        self.bridge.unload()

    def end(self) -> None:
        """End now and wait, as the program exits. May be called twice."""
        self.bridge.shutdown(_END_S)
        self.bridge.deleteLater()
        self.deleteLater()


class Switcher(QObject):
    """Switches the main engine between sides. `switched(ModelInfo, EngineConfig, seconds)`: it is
    `side` now. `failed(ErrorInfo)`: it could not become `target`. `disturbed`: the user changed
    settings of a side elsewhere."""

    switched = Signal(object, object, float)
    failed = Signal(object)
    disturbed = Signal()

    def __init__(self, bridge: EngineBridge, session: ModelSession, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge, self._session = bridge, session
        self.side = self.target = self.home = LEFT
        self.is_switching = self.is_replacing = False
        self._is_watching = False
        self._settings: list[dict[str, Any]] = [{}, {}, {}]
        self._configs: list[EngineConfig] = []
        self._began = 0.0
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_reconfigure_failed)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)

    def begin(self, setups: tuple[Setup, Setup], loaded: EngineConfig) -> None:
        """Note which side, if any, the engine with `loaded` is. Raises ConfigError."""
        current = self._session.current
        home = current.config() if current is not None else loaded
        settings = whole_settings(setups, loaded)
        as_found = {name: getattr(loaded, name) for name in settings[LEFT]}
        self.side = next((side for side in SIDES if setups[side].is_loaded(loaded)), HOME)
        self.target = self.home = self.side
        self._configs = [*(setup.config(home) for setup in setups), home]
        self._settings = [*settings, as_found]
        self._configs[self.home], self._settings[self.home] = home, as_found
        self.is_switching = self.is_replacing = False
        self._is_watching = True

    def config(self, side: int) -> EngineConfig:
        """The configuration of a side."""
        return self._configs[side]

    def to(self, side: int) -> None:
        self.target, self.is_switching = side, True
        self.is_replacing = not is_same_model(self._configs[self.side], self._configs[side])
        self._began = time.perf_counter()
        if self.is_replacing:
            self._session.load(self._configs[side])
        else:
            self._bridge.reconfigure(**self._settings[side])

    def cancel(self) -> None:
        """Cancel a switch to a side; restoring the original state is never cancelled."""
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

    def _on_reconfigure_failed(self, event: messages.ReconfigureFailed) -> None:
        if self.is_switching and not self.is_replacing:
            self._not_done(event.error)

    def _on_loaded(self, event: messages.Loaded) -> None:
        if self.is_replacing:
            self._done(event.model, event.config)

    def _on_load_failed(self, event: messages.LoadFailed) -> None:
        if self.is_replacing:
            self._not_done(event.error)
