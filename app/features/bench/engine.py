"""`WindowEngine`: the engine of the chats as a load generator sees it.

    thread of the sweep    add_request, abort  -- submit -->  engine
                           step  <-- queue <--  signals of the bridge (GUI thread)

Other requests of the window run on beside it.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from PySide6.QtCore import QObject, Signal, SignalInstance

from app.bench.sweep import SweepCancelledError
from app.bench.workload import text_of
from app.link.bridge import EngineBridge, EngineState
from engine import messages
from engine.config import EngineConfig, differences_text
from engine.errors import (
    ConfigError,
    DraftModelError,
    ErrorInfo,
    InferdeckError,
    UnsupportedModelError,
)
from engine.hardware.peaks import Peaks
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, MemoryPlan, ModelInfo, StepRecord

PREFIX = "bench-"
POLL_S = 0.1
SNAPSHOT_S = 1.0
"""For the snapshot of the last steps."""
PEAKS_S = 20.0
"""For the peaks of the machine, which an idle engine measures."""
OPENED = "Another program opened a model."
AGAIN = "Run the benchmark again."
_REFUSALS = {kind.__name__ for kind in (ConfigError, DraftModelError, UnsupportedModelError)}
Arrived = messages.OutputEvent | ErrorInfo


class WindowEngine(QObject):
    """Made in the GUI thread while a model is open; then used by one thread. Calls raise
    SweepCancelledError once `cancel` was called, the engine is gone or another program changed its
    model or settings, which `problem` explains. `is_applying`: settings were sent, and the engine
    has not answered yet."""

    _wants = Signal(object)
    _wants_peaks = Signal()

    def __init__(self, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        assert bridge.model is not None and bridge.config is not None and bridge.plan is not None
        self._bridge = bridge
        self.model_info: ModelInfo = bridge.model
        self.config: EngineConfig = bridge.config
        self.plan: MemoryPlan = bridge.plan
        self.problem: ErrorInfo | None = None
        self.is_applying = False
        self._sent: Mapping[str, Any] = {}
        self._is_over = threading.Event()
        self._arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[EngineConfig | ErrorInfo] = queue.SimpleQueue()
        self._peaks: queue.SimpleQueue[Peaks | None] = queue.SimpleQueue()
        self._in_flight: set[str] = set()
        self._numbers = itertools.count(1)
        self._lock = threading.Condition()
        self._latest = bridge.latest  # an idle engine sends no other
        self._finished_at = 0.0  # the last request, on the clock of snapshots
        self._steps: list[StepRecord] = []
        self._pairs: tuple[tuple[SignalInstance, Callable[[Any], None]], ...] = (
            (bridge.outputs, self._on_outputs), (bridge.request_failed, self._on_failed),
            (bridge.reconfigured, self._on_reconfigured), (bridge.snapshot, self._on_snapshot),
            (bridge.reconfigure_failed, self._on_not_reconfigured),
            (bridge.state_changed, self._on_state),
            (bridge.loaded, lambda event: self._stop(ErrorInfo(OPENED, AGAIN))),
            (bridge.peaks_measured, lambda event: self._peaks.put(event.peaks)),
        )  # fmt: skip
        for signal, slot in self._pairs:
            signal.connect(slot)
        self._wants.connect(lambda changes: bridge.reconfigure(**changes))
        self._wants_peaks.connect(bridge.measure_peaks)

    # GUI thread ---------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._is_over.set()

    def close(self) -> None:
        for signal, slot in self._pairs:
            signal.disconnect(slot)
        self._pairs = ()

    def _on_outputs(self, events: list[messages.OutputEvent]) -> None:
        for event in events:
            if event.request_id.startswith(PREFIX):
                self._arrived.put(event)

    def _on_failed(self, event: messages.RequestFailed) -> None:
        if event.request_id.startswith(PREFIX):
            self._arrived.put(event.error)

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        changed = self.config.differences(event.config)
        # of those sent last, whose answer may come after one that another program waited for
        is_own = all(
            name in self._sent and (self.is_applying or self._sent[name] == now)
            for name, (_, now) in changed.items()
        )
        if not is_own:
            what = differences_text(changed)
            self._stop(ErrorInfo(f"Another program changed settings: {what}.", AGAIN))
        self.config = event.config
        self.model_info, self.plan = event.model or self.model_info, event.plan or self.plan
        self.is_applying = False
        self._answers.put(event.config)

    def _on_not_reconfigured(self, event: messages.ReconfigureFailed) -> None:
        self.is_applying = False
        self._answers.put(event.error)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        with self._lock:
            self._latest = snapshot
            self._steps += snapshot.steps
            self._lock.notify_all()

    def _on_state(self, state: EngineState) -> None:
        if state in (EngineState.EMPTY, EngineState.CRASHED, EngineState.LOADING):
            self._stop(ErrorInfo(f"The engine stopped ({state}).", "Open the model again."))

    def _stop(self, problem: ErrorInfo) -> None:
        self.problem = self.problem or problem
        self._is_over.set()

    # The sweep's thread -------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return bool(self._in_flight)

    def add_request(self, prompt: messages.Prompt, params: SamplingParams) -> str:
        self._check()
        request_id = f"{PREFIX}{next(self._numbers)}"
        ids = () if isinstance(prompt, str) else tuple(p for p in prompt if isinstance(p, int))
        if ids and not self.model_info.is_described:  # elsewhere: its token ids are not known
            prompt = text_of(ids)
        self._in_flight.add(request_id)
        self._submit(messages.AddRequest(request_id, prompt, params))
        return request_id

    def abort(self, request_id: str) -> None:
        self._submit(messages.Abort(request_id))

    def step(self) -> Sequence[messages.OutputEvent]:
        """What has arrived; waits for it. Raises ConfigError for a rejected request."""
        self._check()
        try:
            event = self._arrived.get(timeout=POLL_S)
        except queue.Empty:
            return []
        if isinstance(event, ErrorInfo):
            self._in_flight.clear()
            raise ConfigError(event.cause, event.remedy)
        if event.request_id not in self._in_flight:
            return []
        if event.finish_reason is not None:
            self._in_flight.discard(event.request_id)
            if event.times is not None:
                self._finished_at = event.times.finished or self._finished_at
        return [event]

    def snapshot(self) -> EngineSnapshot:
        """The latest one, with the steps since the last call; waits for that of the last step."""
        self._check()
        with self._lock:
            self._lock.wait_for(self._is_current, SNAPSHOT_S)
            if self._latest is None:
                raise ConfigError("The engine reports no snapshots.", "Restart the engine.")
            steps, self._steps = tuple(self._steps), []
            return dataclasses.replace(self._latest, steps=steps)

    def _is_current(self) -> bool:
        latest = self._latest
        return latest is not None and (bool(self._in_flight) or latest.time >= self._finished_at)

    def reconfigure(self, **changes: Any) -> None:
        """Apply settings and wait. Raises ConfigError for settings that the model cannot take,
        InferdeckError where applying them fails."""
        self._check()
        changes = {n: value for n, value in changes.items() if getattr(self.config, n) != value}
        if not changes:
            return
        while not self._answers.empty():
            self._answers.get()
        self._sent, self.is_applying = changes, True
        self._wants.emit(changes)
        while True:
            self._check()
            try:
                answer = self._answers.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if isinstance(answer, ErrorInfo):
                kind = ConfigError if answer.kind in _REFUSALS else InferdeckError
                raise kind(answer.cause, answer.remedy)
            return

    def peaks(self) -> Peaks | None:
        """Measure the machine's peaks and wait; None where that is not possible."""
        while not self._peaks.empty():
            self._peaks.get()
        self._wants_peaks.emit()
        deadline = time.monotonic() + PEAKS_S
        while time.monotonic() < deadline:
            self._check()
            with suppress(queue.Empty):
                return self._peaks.get(timeout=POLL_S)
        return None

    def is_over(self) -> bool:
        """Whether it was cancelled or cannot go on."""
        return self._is_over.is_set()

    def _check(self) -> None:
        if self._is_over.is_set():
            raise SweepCancelledError

    def _submit(self, command: messages.Command) -> None:
        engine = self._bridge.engine
        if engine is not None:
            engine.submit(command)


def name_of(request_id: str) -> str | None:
    """ "bench 12" for a request of a sweep, else None."""
    return request_id.replace("-", " ") if request_id.startswith(PREFIX) else None


