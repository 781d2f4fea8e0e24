"""`Forecaster`: predicts the effect of chosen settings on the load of the last minute.

    choose -> wait -> replay in a process -> curves beside the live charts -> discard: gone
                                                                           -> apply: kept, for its
                                                                              error against the
                                                                              measured result
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.tune.forecast import Forecast, Headline
from app.features.tune.forecast_process import forecast_apart
from app.link.bridge import EngineBridge
from app.link.tasks import LatestTask
from engine.errors import ErrorInfo, InferdeckError, describe
from engine.simulate.settings import REPLAYED
from engine.simulate.traffic import SPAN_S, Traffic
from engine.snapshot import EngineSnapshot
from widgets.live.metric_store import MetricStore

DELAY_MS = 100
"""A dragged slider is predicted for once."""
MOST_TOKENS = 60_000
"""Of a replay: it takes the last half of a minute with twice as many."""
LEAST_S = 10.0


class SupersededError(Exception):
    """Other settings are chosen by now; nobody reads this."""


class Forecaster(QObject):
    """`changed`: another forecast, or none; another `problem`. `problem`: why there is none, or
    ""."""

    changed = Signal()

    def __init__(
        self, bridge: EngineBridge, store: MetricStore, wanted: Callable[[], Mapping[str, Any]],
        parent: QObject | None = None,
    ) -> None:  # fmt: skip
        """`wanted`: the settings that are chosen and not in force."""
        super().__init__(parent)
        self._bridge, self._store, self._wanted = bridge, store, wanted
        self._traffic = Traffic()
        self._load_since = 0.0
        self._changes: dict[str, Any] = {}  # of the forecast, or the one to come
        self._before: dict[str, Any] = {}  # values in force when the forecast was wanted
        self._replaced: dict[str, Any] = {}  # by the settings that were applied last
        self._is_applied = False
        self.forecast: Forecast | None = None
        self.problem = ""
        self._task = LatestTask(self)
        self._wait = QTimer(self, singleShot=True, interval=DELAY_MS)
        self._wait.timeout.connect(self._start)
        bridge.snapshot.connect(self._traffic.update)
        bridge.past.connect(self._on_past)
        bridge.loaded.connect(lambda event: self._show({}))
        bridge.unloaded.connect(lambda: self._show({}))

    def _on_past(self, snapshots: tuple[EngineSnapshot, ...]) -> None:
        for snapshot in snapshots:
            self._traffic.update(snapshot)

    def load_changed(self) -> None:
        """Another load from now on: it alone is replayed."""
        self._load_since = self._store.last_time

    def close(self) -> None:
        """End the process that predicts."""
        self._show({})

    # What is predicted --------------------------------------------------------------------------

    def refresh(self) -> None:
        """Predict what is wanted now."""
        config, wanted = self._bridge.config, dict(self._wanted())
        if config is None or (wanted == self._changes and not self._is_applied):
            return
        if wanted and wanted == self._replaced:  # they are measured: nothing to predict
            if self._changes:
                self._show({})
            return
        if not wanted and self._changes:
            in_force = all(
                value is None or value == getattr(config, name)  # None: automatic
                for name, value in self._changes.items()
            )
            if in_force:
                self._is_applied, self._replaced = True, self._before
                self.changed.emit()
                return
        self._show(wanted)

    def _show(self, changes: dict[str, Any]) -> None:
        """Drop the forecast, and make the one of `changes`."""
        config = self._bridge.config
        if config is not None:
            self._before = {name: getattr(config, name) for name in changes}
        self._changes, self._is_applied = changes, False
        self._task.cancel()
        had = self.forecast is not None or self.problem
        self.forecast, self.problem = None, ""
        if changes and all(name in REPLAYED for name in changes):
            self._wait.start()
        else:
            self._wait.stop()
        if had:
            self.changed.emit()

    def _start(self) -> None:
        like = self._traffic.snapshot
        if like is None:
            return
        try:
            load = self._traffic.load(self._load_since)
            tokens = sum(sent.num_output - sent.num_done for sent in load.requests)
            seconds = max(LEAST_S, SPAN_S * min(1.0, MOST_TOKENS / max(tokens, 1)))
            if seconds < load.end - load.start:
                load = self._traffic.load(self._load_since, seconds)
        except InferdeckError as error:
            self._fail(describe(error))
            return
        samples, changes = self._traffic.samples(), self._changes

        def check() -> None:
            if self._changes is not changes:
                raise SupersededError

        def work() -> Forecast:
            return forecast_apart(like, samples, load, changes, check)

        self._task.run(work, self._found, self._fail)

    def _found(self, found: Forecast) -> None:
        self.forecast, self.problem = found, ""
        self.changed.emit()

    def _fail(self, error: ErrorInfo) -> None:
        self.problem = f"No prediction: {error.cause}"
        self.changed.emit()

    # What it says -------------------------------------------------------------------------------

    @property
    def applied(self) -> Forecast | None:
        """The forecast of the settings that were applied last."""
        return self.forecast if self._is_applied else None

    @property
    def words(self) -> str:
        """Now and as predicted, before the settings are applied."""
        found = self.forecast
        if found is None or self._is_applied:
            return "" if found is not None else self.problem
        epoch = self._store.epoch
        start = found.start if epoch is None else max(found.start, epoch.start)
        return found.words(Headline.of(self._store, start, found.end))
