"""`PrecisionGuide`: sizes and limits of each weight precision, and the duration of a change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.models.estimate import has_libraries
from app.features.models.precision import (
    DTYPE,
    GROUP,
    HEAD,
    WEIGHTS,
    Checkpoint,
    Expected,
    Memory,
    SwitchTimes,
    look_at,
)
from app.link.bridge import EngineBridge, EngineState
from app.link.tasks import Task, run_task
from engine import messages
from engine.config import Change, EngineConfig
from engine.errors import ErrorInfo
from widgets.controls.setting_row import SettingRow

LOOK_DELAY_MS = 300
OF_IT = (WEIGHTS, GROUP, HEAD, DTYPE)
WAYS = {
    "source": "Open the original model…",
    "quantize": "Quantize to AWQ or GPTQ…",
    "open": "Open an AWQ or GPTQ checkpoint…",
}


class Kept:
    """Measured times, not saved."""

    def __init__(self) -> None:
        self.switch_times: dict[str, float] = {}


class PrecisionGuide(QObject):
    """`changed`: hints changed. `way_out(kind)`: the user chose a key of WAYS."""

    changed = Signal()
    way_out = Signal(str)

    def __init__(
        self,
        bridge: EngineBridge,
        rows: Mapping[str, SettingRow],
        memory: Memory | None,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._rows = {name: rows[name] for name in OF_IT}
        self.times = SwitchTimes(memory or Kept())
        self._bridge = bridge
        self.checkpoint: Checkpoint | None = None
        """The loaded checkpoint; None until read."""
        self._problem = ""
        self._asked: EngineConfig | None = None
        self._task: Task | None = None
        self._load_began: float | None = None
        self._wait = QTimer(self, singleShot=True, interval=LOOK_DELAY_MS)  # for a dragged slider
        self._wait.timeout.connect(self._look_now)
        bridge.state_changed.connect(self._on_state)
        bridge.load_progress.connect(self._on_progress)
        bridge.loaded.connect(self._on_loaded)
        bridge.reconfigured.connect(self._on_reconfigured)

    def show(self, applied: EngineConfig | None, shown: Mapping[str, Any]) -> None:
        """`applied`, and the values of OF_IT as shown."""
        if applied is None:
            self._forget()
            return
        dtype = applied.dtype if shown[DTYPE] == "auto" else shown[DTYPE]
        wanted = applied.replace(**{GROUP: shown[GROUP], DTYPE: dtype})
        if not _same_shape(wanted, self._asked):
            self._look(wanted)
        known = self.checkpoint
        if known is None:
            return
        weights, heads = known.of_weights(shown[HEAD], dtype), known.of_head(shown[WEIGHTS])
        for name, choices in ((WEIGHTS, weights), (HEAD, heads)):
            self._rows[name].describe_choices([(c.value, c.text, c.refusal) for c in choices])
        way = known.way_out
        self._rows[WEIGHTS].set_action(WAYS[way], lambda: self.way_out.emit(way))

    @property
    def hint(self) -> str:
        """Extra hint of the weight precision."""
        return self._problem or (self.checkpoint.limits if self.checkpoint is not None else "")

    def named(self, name: str, value: object) -> str:
        """A value as named in its choice box, or ""."""
        known, config = self.checkpoint, self._bridge.config
        if known is None or config is None or name not in (WEIGHTS, HEAD):
            return ""
        if name == WEIGHTS:
            found = known.of_weights(config.quantization_head, config.dtype)
        else:
            found = known.of_head(config.quantization)
        return next((c.text.partition(" · ")[0] for c in found if c.value == value), "")

    def expected(self, config: EngineConfig) -> Expected | None:
        return self.times.expected(config, self.checkpoint)

    # Looking at the checkpoint, off the GUI thread ---------------------------------------------

    def _look(self, config: EngineConfig) -> None:
        if self._asked is None or self._asked.model != config.model:
            self.checkpoint = None
        self._asked = config
        self._wait.start()

    def _look_now(self) -> None:
        config = self._asked
        if config is None or not has_libraries():
            return  # the engine is in another process, its libraries not imported
        if self._bridge.offers is not None:
            return  # the files are on another machine
        if self._task is not None:
            self._task.cancel()
        self._task = run_task(self, lambda: look_at(config), self._found, self._not_found)

    def _found(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self._problem, self._task = checkpoint, "", None
        self.changed.emit()

    def _not_found(self, error: ErrorInfo) -> None:
        self._problem, self._task = f"Weight sizes unavailable: {error.cause}", None
        self.changed.emit()

    def _forget(self) -> None:
        self._wait.stop()
        if self._task is not None:
            self._task.cancel()
        self._task = self.checkpoint = self._asked = None
        self._problem = ""
        self._rows[WEIGHTS].set_action("", lambda: None)

    # Measuring -----------------------------------------------------------------------------------

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.LOADING:
            self._load_began = None

    def _on_progress(self, progress: messages.LoadProgress) -> None:
        if self._load_began is None and self._bridge.state is EngineState.LOADING:
            self._load_began = time.perf_counter()  # after importing libraries

    def _on_loaded(self, event: messages.Loaded) -> None:
        if self._load_began is not None and not self._bridge.is_remote:
            self.times.learn_load(event.config, time.perf_counter() - self._load_began)
        self._load_began = None

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if event.change is Change.RELOAD and not self._bridge.is_remote:
            self.times.learn(event.config, event.seconds)


def _same_shape(wanted: EngineConfig, known: EngineConfig | None) -> bool:
    """Whether both have the same weight sizes."""
    if known is None:
        return False
    names = ("model", "load_format", GROUP, DTYPE)
    return all(getattr(wanted, name) == getattr(known, name) for name in names)
