"""`Switcher`: makes the one engine of the window the left side, the right side, and left again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.compare.record import LEFT, RIGHT
from app.compare.way import agrees
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
        self.side = self.target = LEFT
        self.is_switching = False
        self._is_watching = False
        self._settings: Sequence[Mapping[str, Any]] = ({}, {})
        self._models: tuple[EngineConfig, EngineConfig] | None = None
        self._began = 0.0
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_refused)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)

    @property
    def is_replacing(self) -> bool:
        """Whether another model is being loaded in the place of the one that is open."""
        return self.is_switching and self._models is not None

    def begin(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """The engine is the left side; `settings` of each side, to be changed in place."""
        self.side = self.target = LEFT
        self._settings, self._models = settings, None
        self._is_watching, self.is_switching = True, False

    def replace_models(self, right: EngineConfig) -> None:
        """The right side is another model."""
        known = self._session.current if self._session is not None else None
        left = known.config() if known is not None else self._bridge.config
        assert left is not None
        self._models = (left, right)

    def to(self, side: int) -> None:
        self.target, self.is_switching = side, True
        self._began = time.perf_counter()
        if self._models is None:
            self._bridge.reconfigure(**self._settings[side])
        elif self._session is not None:
            self._session.load(self._models[side])
        else:
            self._bridge.load(self._models[side])

    def cancel(self) -> None:
        """Give up going to the right; the way back is gone to its end."""
        if self.is_switching and self.target == RIGHT:
            self._bridge.cancel_load()

    def end(self) -> None:
        self._is_watching = self.is_switching = False

    def _done(self, model: Any, config: EngineConfig) -> None:
        self.side, self.is_switching = self.target, False
        self.switched.emit(model, config, time.perf_counter() - self._began)

    def _not_done(self, error: ErrorInfo) -> None:
        self.is_switching = False
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
