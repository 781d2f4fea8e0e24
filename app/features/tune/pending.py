"""`PendingCard`: the collected changes, what they will cost and gain, Discard and Apply.

    KV cache dtype auto → INT8
    Pause about 430 ms, recomputes 573 tokens
    Model and KV cache 620 MiB → 620 MiB · KV cache 6,480 → 23,040 tokens
    Up to 1.05× throughput
    Prediction for the last 60 s: ITL p50 9.1 → 12.3 ms, ...
    [Discard] [Apply (cache rebuild)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QWidget

from app.features.models.estimate import has_libraries, plan_after
from app.features.tune.hints import resolved
from app.features.tune.prediction import Pause, memory_words
from app.link.bridge import EngineBridge
from app.link.row_names import by_row
from app.link.tasks import Task, run_task
from engine.config import Change, EngineConfig, costliest, differences_text
from engine.errors import ErrorInfo, OutOfMemoryError
from engine.snapshot import MemoryPlan
from widgets.controls.layouts import button, dressed, hbox, vbox, wrapped
from widgets.controls.text import set_key_tip
from widgets.theme.theme import SPACE_1, restyle

PLAN_DELAY_MS = 300
"""A dragged slider is planned for once."""


class PendingCard(QWidget):
    """Hidden without pending changes."""

    def __init__(
        self, bridge: EngineBridge, apply: Callable[[], object], discard: Callable[[], object]
    ) -> None:
        super().__init__()
        dressed(self, "Pending settings")
        self._bridge = bridge
        self._config: EngineConfig | None = None  # after Apply
        self._task: Task | None = None
        self._wait = QTimer(self, singleShot=True, interval=PLAN_DELAY_MS)
        self._wait.timeout.connect(self._plan)
        self.what, self.pause, self.gain = wrapped(), wrapped("small"), wrapped("small")
        self.memory, self.forecast = wrapped("small"), wrapped("small")
        self.forecast.hide()
        self.discard = button("Discard", discard)
        self.apply = button("Apply", apply, kind="primary")
        set_key_tip(self.discard, "Drop the pending changes", "tune.discard")
        set_key_tip(self.apply, "Apply the pending changes together", "tune.apply")
        vbox(
            self.what, self.pause, self.memory, self.gain, self.forecast,
            hbox(self.discard, (self.apply, 1)), of=self, spacing=SPACE_1,
        )  # fmt: skip
        self.hide()

    def show_changes(
        self,
        applied: EngineConfig | None,
        pending: Mapping[str, Any],
        pause: Callable[[Change, EngineConfig], Pause],
        gains: Sequence[str],
    ) -> None:
        """`pause`: of a change to a configuration; `gains`: potential gains, as text."""
        self.setVisible(bool(pending) and applied is not None)
        if not pending or applied is None:
            self._config = None
            self._wait.stop()
            return
        config, cost = resolved(applied, pending), costliest(pending)
        self.apply.setText(f"Apply ({cost.value})")
        self.apply.setEnabled(not self._bridge.locked)
        self.what.setText(
            differences_text({name: (getattr(applied, name), v) for name, v in pending.items()})
        )
        self.pause.setText(pause(cost, config).words)
        self.gain.setText("\n".join(gains))
        self.gain.setVisible(bool(gains))
        if config != self._config:
            self._config = config
            self._say("")
            self._wait.start()

    def show_forecast(self, text: str) -> None:
        """What the changes would have done to the last minute."""
        self.forecast.setText(text)
        self.forecast.setVisible(bool(text))

    @property
    def apply_text(self) -> str:
        """Text of the Apply button; "" without pending changes."""
        return "" if self.isHidden() else self.apply.text()

    # Memory, planned off the GUI thread ---------------------------------------------------------

    def _plan(self) -> None:
        config, bridge = self._config, self._bridge
        is_here = has_libraries() and bridge.offers is None
        if config is None or bridge.config is None or bridge.plan is None or not is_here:
            return  # the engine, with its libraries or the model's files, is elsewhere
        if self._task is not None:
            self._task.cancel()
        stays = config.change_class(bridge.config) is not Change.RELOAD
        layers = bridge.plan.host_layers if stays else None
        work = partial(plan_after, config, bridge.gives_back, layers)
        self._task = run_task(self, work, partial(self._found, config), self._not_found)

    def _found(self, config: EngineConfig, after: MemoryPlan) -> None:
        self._task = None
        before, now = self._bridge.plan, self._bridge.config
        if config == self._config and before is not None and now is not None:
            self._say(memory_words(before, now.block_size, after, config.block_size))

    def _not_found(self, error: ErrorInfo) -> None:
        self._task = None
        if error.kind == OutOfMemoryError.__name__:
            self._say(by_row(str(error)).replace("\n", " "), "error")

    def _say(self, text: str, role: str = "small") -> None:
        self.memory.setText(text)
        self.memory.setVisible(bool(text))
        restyle(self.memory, role=role)
