"""The border between the window and the engine's thread.

    GUI thread                                    engine thread
    bridge.add_request(...)  -- submit(command) -->  queue
    Qt signals  <-- one posted wake-up <-- deque <-- on_event(event)

Nothing here waits for the engine, and the engine never waits for the window: `on_event` appends
to a deque and posts at most one wake-up. What is urgent (the first token of a reply, its end,
errors, answers to commands) is handed on by that wake-up at once; the rest is handed on together
when a short timer fires, which runs only while something is pending.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from threading import Lock, Thread
from typing import Any, Protocol

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer, Signal

from app.connections.target import Event, LinkChanged, LinkState, Past, Remark
from app.models.sources import STARTER_TITLE, is_starter
from app.pace import Pace
from app.snapshots import merge_snapshots
from engine import messages
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, MemoryPlan, ModelInfo

log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_MS = 250
"""As often as the charts are drawn. A snapshot has the steps and samples since the one before, so
nothing is lost between two."""


class EngineState(StrEnum):
    EMPTY = "no model"
    LOADING = "loading"
    READY = "ready"
    CRASHED = "crashed"


class EngineThreadLike(Protocol):
    """What the bridge needs of `engine.engine_thread.EngineThread`."""

    def start(self) -> None: ...
    def is_alive(self) -> bool: ...
    def submit(self, command: messages.Command) -> None: ...
    def cancel_load(self) -> None: ...
    def stop(self, timeout_s: float = ...) -> Any: ...


OnEvent = Callable[[Event], None]
ThreadFactory = Callable[[OnEvent], EngineThreadLike]


def engine_thread(on_event: OnEvent) -> EngineThreadLike:
    """The real engine's thread. Imported late: what it needs is loaded after the window shows."""
    from engine.engine_thread import EngineThread

    return EngineThread(on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_MS / 1000)


_WAKE = QEvent.Type(QEvent.registerEventType())


class EngineBridge(QObject):
    """Commands in, Qt signals out. Lives in the GUI thread; `on_event` alone is called elsewhere.

    state_changed fires after `state`, `model`, `config` or `plan` have changed and before the
    signal of the event that changed them.

    The engine is the program's own until `attach` puts one in its place that runs elsewhere, and
    again after `detach`. `link` tells how the line to that one stands; a state stays what it was
    while the line is cut.
    """

    outputs = Signal(object)  # list[OutputEvent], in order
    request_failed = Signal(object)  # RequestFailed
    load_progress = Signal(object)  # LoadProgress, the latest
    loaded = Signal(object)  # Loaded
    load_failed = Signal(object)  # LoadFailed
    unloaded = Signal()
    reconfigured = Signal(object)  # Reconfigured
    made_room = Signal(object)  # MadeRoom
    reconfigure_failed = Signal(object)  # ReconfigureFailed
    snapshot = Signal(object)  # EngineSnapshot with the steps and samples of all that it merges
    block_inspected = Signal(object)  # BlockInspected
    peaks_measured = Signal(object)  # PeaksMeasured
    tokens_counted = Signal(object)  # TokensCounted
    crashed = Signal(object)  # EngineCrashed
    state_changed = Signal(object)  # EngineState
    past = Signal(object)  # tuple[EngineSnapshot, ...]: figures of before an attachment
    link_changed = Signal(object)  # LinkChanged | None: the engine is our own
    remarked = Signal(object)  # Remark

    def __init__(self, make_thread: ThreadFactory = engine_thread, parent: QObject | None = None):
        super().__init__(parent)
        self._make_thread = make_thread
        self._make_own = make_thread
        self._make_next: ThreadFactory | None = None  # from the next load on
        self._thread: EngineThreadLike | None = None
        self._leaving: list[Thread] = []  # these end engines that were left
        self._closed = False
        self._listeners: tuple[Callable[[messages.Event], None], ...] = ()
        self._inbox: deque[Event] = deque()
        self._engine_number = 0  # what an engine says that was left is not heard
        self._requests: set[str] = set()  # that have not ended
        self._lock = Lock()  # of the two flags below, which both threads set
        self._wake_posted = False
        self._timer_soon = False
        self._outputs: list[messages.OutputEvent] = []
        self._progress: messages.LoadProgress | None = None
        self._snapshots: list[EngineSnapshot] = []
        self._last_snapshot_at = 0.0
        self._pace = Pace()  # of text: that of all replies is handed on together
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timer)
        self._state_timer = QTimer(self)  # a state is shown in a turn of its own, after the text
        self._state_timer.setSingleShot(True)
        self._state_timer.timeout.connect(self._flush_snapshots)
        self.state = EngineState.EMPTY
        self.model: ModelInfo | None = None
        self.config: EngineConfig | None = None
        self.plan: MemoryPlan | None = None
        self.link: LinkChanged | None = None

    def beside(self) -> EngineBridge:
        """Another engine of our own, with nothing loaded. Whoever asks for it ends it by
        `shutdown`."""
        return EngineBridge(self._make_own)

    # Which engine ----------------------------------------------------------------------------

    @property
    def is_remote(self) -> bool:
        """Whether the engine runs elsewhere."""
        return self._make_thread is not self._make_own

    @property
    def engine(self) -> EngineThreadLike | None:
        """What stands for the engine now: a remote one tells more of itself."""
        return self._thread

    @property
    def has_next(self) -> bool:
        """Whether the next model is opened by an engine of our own of another kind."""
        return self._make_next is not None

    def make_next(self, make_thread: ThreadFactory) -> None:
        """Engines of our own are of this kind, from the next model on. What runs goes on; a
        comparison beside it has an engine of the kind that runs."""
        self._make_next = None if make_thread is self._make_own else make_thread
        if self._thread is None:
            self.turn_to_next()

    def turn_to_next(self) -> None:
        """The engine of `make_next` takes the place of the one before, if there is one to."""
        if self._make_next is None or self.is_remote:
            return
        self._make_own = self._make_thread = self._make_next
        self._make_next = None
        if self._thread is not None:
            self._turn_to(self._make_own)

    @property
    def offers(self) -> tuple[str, ...] | None:
        """Names of the models that an engine elsewhere opens; None where the engine reads the
        folders of this machine."""
        return getattr(self._thread, "offers", ()) if self.is_remote else None

    @property
    def place(self) -> str:
        """Where an engine elsewhere is, as people say it; "" for one of our own."""
        return str(getattr(self._thread, "place", "")) if self.is_remote else ""

    @property
    def look_only(self) -> str:
        """Why this window may not open models or change settings there; "" where it may."""
        if not self.is_remote or getattr(self._thread, "may_control", True):
            return ""
        return f"{self.place} lets windows look and ask, not change it (--no-control)."

    def attach(self, make_thread: ThreadFactory) -> None:
        """Leave the engine for another, whose events tell what it has loaded."""
        self._turn_to(make_thread)
        self._start()
        self._answer(LinkChanged(LinkState.CONNECTING, time.perf_counter()))

    def attach_again(self) -> None:
        """The engine elsewhere on a new line, after the one before ended for good."""
        if self.is_remote:
            self.attach(self._make_thread)

    def detach(self) -> None:
        """Back to an engine of our own, with nothing loaded."""
        if self.is_remote:
            self._turn_to(self._make_own)
            self.link_changed.emit(None)

    def _turn_to(self, make_thread: ThreadFactory) -> None:
        before, self._thread = self._thread, None
        self._engine_number += 1
        # what was written stays; what else it said is not true any more
        written = [event for event in self._inbox if isinstance(event, messages.OutputEvent)]
        self._inbox.clear()
        for event in written:
            self._take_output(event)
        self._flush_outputs()
        self._progress = None
        if before is not None and before.is_alive():
            self._end_aside(before)
        self._make_thread, self.link = make_thread, None
        words = ErrorInfo("The window turned to another engine; the reply was stopped.")
        for request_id in sorted(self._requests):
            self._answer(messages.RequestFailed(request_id, words))
        self._answer(messages.Unloaded())

    def _end_aside(self, engine: EngineThreadLike) -> None:
        """An engine may be in the midst of a step, or of a load."""
        engine.cancel_load()
        self._leaving = [thread for thread in self._leaving if thread.is_alive()]
        self._leaving.append(Thread(target=engine.stop, name="leaving engine", daemon=True))
        self._leaving[-1].start()

    # Commands --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a request that is added now would be served."""
        return self.state is EngineState.READY

    def load(self, config: EngineConfig) -> None:
        self.turn_to_next()
        self._set_state(EngineState.LOADING)
        self._submit(messages.Load(config))

    def cancel_load(self) -> None:
        if self._thread is not None:
            self._thread.cancel_load()

    def unload(self) -> None:
        self._submit(messages.Unload())

    def add_listener(self, listener: Callable[[messages.Event], None]) -> None:
        """From now on `listener` gets every event of our own engine, on its thread: it must return
        at once, and raise nothing."""
        self._listeners = (*self._listeners, listener)

    def pass_on(self, command: messages.Command) -> None:
        """Give a command of somebody else to our own engine, from any thread. Nothing happens where
        it does not run."""
        thread = self._thread
        if thread is not None and not self.is_remote:
            thread.submit(command)

    def add_request(
        self,
        request_id: str,
        prompt: messages.Prompt,
        params: SamplingParams | None = None,
        begin_with: tuple[int, ...] = (),
    ) -> None:
        params = params or SamplingParams()
        self._requests.add(request_id)
        self._submit(messages.AddRequest(request_id, prompt, params, begin_with))

    def abort(self, request_id: str) -> None:
        self._submit(messages.Abort(request_id))

    def inspect_block(self, block: int) -> None:
        """Ask what a KV block holds; `block_inspected` answers."""
        self._submit(messages.InspectBlock(block))

    def measure_peaks(self) -> None:
        """Measure what the machine can do at most; `peaks_measured` answers."""
        self._submit(messages.MeasurePeaks())

    def count_tokens(self, key: str, text: str) -> None:
        """Ask how many tokens a text has; `tokens_counted` answers under `key`. Nothing is asked
        where no model is open."""
        if self.is_ready:
            self._submit(messages.CountTokens(key, text))

    def reconfigure(self, **changes: Any) -> None:
        self._submit(messages.Reconfigure(changes))

    def shutdown(self, timeout: float = 5.0) -> None:
        """End the engine's thread and hand on what it said last. The one call that waits."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.cancel_load()
            thread.stop(timeout_s=timeout)
            if thread.is_alive():
                log.error("the engine's thread did not end within %.1f s", timeout)
        for leaving in self._leaving:
            leaving.join(timeout)
        self._deliver()
        self._flush_outputs()
        self._timer.stop()
        self._state_timer.stop()
        self._snapshots.clear()

    def _submit(self, command: messages.Command) -> None:
        if self._closed:
            return
        self._start().submit(command)

    def _start(self) -> EngineThreadLike:
        """The engine's thread, which runs."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = self._make_thread(self._ear())
            self._thread.start()
        return self._thread

    def _ear(self) -> OnEvent:
        """For the engine of now."""
        number = self._engine_number

        def hear(event: Event) -> None:
            if number == self._engine_number:
                self.on_event(event)

        return hear

    # The engine's thread ---------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Called by the engine's thread: note the event, and wake the window once if need be."""
        if not self.is_remote and not isinstance(event, LinkChanged | Past | Remark):
            for listener in self._listeners:
                listener(event)
        self._inbox.append(event)
        if self._closed:
            return
        urgent = _is_urgent(event)
        with self._lock:
            if self._wake_posted or (self._timer_soon and not urgent):
                return
            self._wake_posted = True
        levels = Qt.EventPriority
        priority = levels.HighEventPriority if urgent else levels.NormalEventPriority
        QCoreApplication.postEvent(self, QEvent(_WAKE), priority.value)

    # The GUI thread --------------------------------------------------------------------------

    def event(self, event: QEvent) -> bool:
        if event.type() != _WAKE:
            return super().event(event)
        with self._lock:
            self._wake_posted = False
        self._deliver()
        self._run_timer()
        return True

    def _on_timer(self) -> None:
        with self._lock:
            self._timer_soon = False
        self._deliver()
        self._flush_outputs()
        self._flush_progress()
        if self._snapshots and self._snapshot_due_ms() <= 0:
            self._state_timer.start(0)
        self._run_timer()

    def _run_timer(self) -> None:
        """Start the timer if something is pending and it does not run yet."""
        if self._closed:
            return
        if self._outputs or self._progress:
            wait = self._pace.interval_ms
        elif self._snapshots and not self._state_timer.isActive():
            wait = max(self._pace.interval_ms, self._snapshot_due_ms())
        else:
            return
        if self._timer.isActive() and self._timer.remainingTime() <= wait:
            return
        with self._lock:
            self._timer_soon = wait <= self._pace.interval_ms
        self._timer.start(wait)

    def _snapshot_due_ms(self) -> int:
        elapsed = (time.perf_counter() - self._last_snapshot_at) * 1000
        return int(SNAPSHOT_INTERVAL_MS - elapsed)

    def _deliver(self) -> None:
        """Take what arrived, in order: hand on the urgent, keep the rest for the timer."""
        while self._inbox:
            event = self._inbox.popleft()
            if isinstance(event, messages.OutputEvent):
                self._take_output(event)
                if _is_urgent(event):
                    self._flush_outputs()
            elif isinstance(event, messages.SnapshotEvent):
                self._snapshots.append(event.snapshot)
            elif isinstance(event, messages.LoadProgress):
                self._progress = event
                if self.state is EngineState.EMPTY:  # an engine elsewhere loads already
                    self._set_state(EngineState.LOADING)
            else:
                self._flush_outputs()
                self._flush_progress()
                self._answer(event)

    def _take_output(self, event: messages.OutputEvent) -> None:
        self._outputs.append(event)
        if event.finish_reason is not None:
            self._requests.discard(event.request_id)

    def _answer(self, event: Event) -> None:
        match event:
            case LinkChanged():
                self.link = event
                self.link_changed.emit(event)
            case Remark():
                self.remarked.emit(event)
            case Past(snapshots):
                self.past.emit(snapshots)
            case messages.Loaded(config, model, plan):
                model = titled(model)
                self._now(EngineState.READY, model, config, plan)
                self.loaded.emit(dataclasses.replace(event, model=model))
            case messages.LoadFailed(serving=None):
                self._now(EngineState.EMPTY)
                self.load_failed.emit(event)
            case messages.LoadFailed():
                self._set_state(EngineState.READY)
                self.load_failed.emit(event)
            case messages.Unloaded():
                self._now(EngineState.EMPTY)
                self.unloaded.emit()
            case messages.Reconfigured(config):
                self.config = config
                if event.model is not None:
                    self.model, self.plan = titled(event.model), event.plan
                self._set_state(self.state)
                self.reconfigured.emit(event)
            case messages.MadeRoom(_, model, plan):
                self.model, self.plan = titled(model), plan
                self._set_state(self.state)
                self.made_room.emit(event)
            case messages.ReconfigureFailed(config):
                self.config = config
                self.reconfigure_failed.emit(event)
            case messages.RequestFailed():
                self._requests.discard(event.request_id)
                self.request_failed.emit(event)
            case messages.TokensCounted():
                self.tokens_counted.emit(event)
            case messages.BlockInspected():
                self.block_inspected.emit(event)
            case messages.PeaksMeasured():
                self.peaks_measured.emit(event)
            case messages.EngineCrashed():
                self._requests.clear()
                self._now(EngineState.CRASHED)
                self.crashed.emit(event)

    def _now(
        self,
        state: EngineState,
        model: ModelInfo | None = None,
        config: EngineConfig | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        self.model, self.config, self.plan = model, config, plan
        self._snapshots.clear()  # they tell of the model before
        self._set_state(state)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self.state_changed.emit(state)

    def _flush_outputs(self) -> None:
        if self._outputs:
            self._pace.mark()
            batch, self._outputs = self._outputs, []
            self.outputs.emit(batch)

    def _flush_progress(self) -> None:
        if self._progress is not None:
            latest, self._progress = self._progress, None
            self.load_progress.emit(latest)

    def _flush_snapshots(self) -> None:
        if self._snapshots:
            merged, self._snapshots = merge_snapshots(self._snapshots), []
            merged = dataclasses.replace(merged, model=titled(merged.model))
            self._last_snapshot_at = time.perf_counter()
            self.snapshot.emit(merged)


def _is_urgent(event: Event) -> bool:
    if isinstance(event, messages.OutputEvent):
        return event.is_first or event.finish_reason is not None
    return not isinstance(event, messages.SnapshotEvent | messages.LoadProgress)


def titled(model: ModelInfo) -> ModelInfo:
    """The model under the name that the window uses: the folder of the starter says nothing."""
    return dataclasses.replace(model, name=STARTER_TITLE) if is_starter(model.path) else model
