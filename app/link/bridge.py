"""The bridge between the window and the engine's thread.

    GUI thread                                    engine thread
    bridge.add_request(...)  -- submit(command) -->  queue
    Qt signals  <-- EventDispatcher <-- on_event(event)

Neither side blocks the other. The dispatcher delivers urgent events (the first token of a reply,
its end, errors, answers to commands) at once, and batches the rest.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.clients.target import Continues, Event, LinkChanged, LinkState, Past, Remark, Traced
from app.link.dispatcher import EventDispatcher, titled
from app.link.engine_handle import EngineHandle, EngineThreadLike, ThreadFactory, engine_thread
from app.link.row_names import event_by_row
from engine import messages
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.hardware import garbage
from engine.hardware.devices import CPU
from engine.heartbeat import Pulse
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, MemoryPlan, ModelInfo

_STREAM = (messages.OutputEvent, messages.SnapshotEvent)
_ENDS_STALL = (
    messages.Recovered, messages.Loaded, messages.LoadFailed, messages.Unloaded,
    messages.EngineCrashed,
)  # fmt: skip


class EngineState(StrEnum):
    EMPTY = "no model"
    LOADING = "loading"
    READY = "ready"
    CRASHED = "crashed"


class EngineBridge(QObject):
    """Commands in, Qt signals out. Lives in the GUI thread; only `on_event` is called elsewhere.

    state_changed fires after `state`, `model`, `config` or `plan` have changed and before the
    signal of the event that changed them.

    The engine is local until `attach` replaces it with a remote one, and again after `detach`.
    `link` is the state of that connection; `state` is unchanged while the connection is lost.
    """

    outputs = Signal(object)  # list[OutputEvent], in order
    ended = Signal(object)  # OutputEvent: the last of a request
    request_failed = Signal(object)  # RequestFailed
    load_progress = Signal(object)  # LoadProgress, the latest
    loaded = Signal(object)  # Loaded
    load_failed = Signal(object)  # LoadFailed
    unloaded = Signal()
    reconfiguring = Signal(object)  # mapping: changes that this window sends
    reconfigured = Signal(object)  # Reconfigured
    made_room = Signal(object)  # MadeRoom
    reconfigure_failed = Signal(object)  # ReconfigureFailed
    snapshot = Signal(object)  # EngineSnapshot with the steps and samples of all merged ones
    block_inspected = Signal(object)  # BlockInspected
    peaks_measured = Signal(object)  # PeaksMeasured
    steps_profiled = Signal(object)  # StepsProfiled
    tokens_counted = Signal(object)  # TokensCounted
    crashed = Signal(object)  # EngineCrashed
    stalled_changed = Signal(object)  # Stalled | None: the engine answers again, or was replaced
    state_changed = Signal(object)  # EngineState
    lock_changed = Signal()  # see `lock_settings`
    past = Signal(object)  # tuple[EngineSnapshot, ...]: from before the attachment
    link_changed = Signal(object)  # LinkChanged | None: the engine is local
    remarked = Signal(object)  # Remark
    traced = Signal(object)  # Traced

    def __init__(self, make_thread: ThreadFactory = engine_thread, parent: QObject | None = None):
        super().__init__(parent)
        self._handle = EngineHandle(make_thread, self.on_event)
        self._closed = False
        self._listener: Callable[[messages.Event], None] | None = None
        self._hears_stream = False
        self._requests: set[str] = set()  # that have not ended
        self.dispatcher = EventDispatcher(self)
        self.state = EngineState.EMPTY
        self.model: ModelInfo | None = None
        self.config: EngineConfig | None = None
        self.plan: MemoryPlan | None = None
        self.latest: EngineSnapshot | None = None
        self.lock = ""
        """Why settings are locked while something is measured; "" if they are not."""
        self._num_changing = 0  # changes of settings that are not answered
        self.link: LinkChanged | None = None
        self.stalled: messages.Stalled | None = None
        """The engine does not answer; the next `load` replaces it."""

    def beside(self) -> EngineBridge:
        """A second local engine with nothing loaded. The caller calls its `shutdown`."""
        return EngineBridge(self._handle.make_own)

    # Which engine ----------------------------------------------------------------------------

    @property
    def is_remote(self) -> bool:
        return self._handle.is_remote

    @property
    def engine(self) -> EngineThreadLike | None:
        """The current engine; a remote one has more attributes."""
        return self._handle.engine

    @property
    def pulse(self) -> Pulse | None:
        """Of a local engine; None: not reported."""
        return None if self.is_remote else getattr(self.engine, "pulse", None)

    @property
    def has_next(self) -> bool:
        """Whether the next model opens in another kind of local engine."""
        return self._handle.make_next is not None

    def make_next(self, make_thread: ThreadFactory) -> None:
        """Use this kind of local engine from the next model on. The current one keeps running; a
        comparison beside it has an engine of the current kind."""
        self._handle.make_next = None if make_thread is self._handle.make_own else make_thread
        if self.engine is None:
            self.turn_to_next()

    def turn_to_next(self) -> None:
        """Replace the local engine by one of the kind given to `make_next`, if any."""
        if not self.has_next or self.is_remote:
            return
        self._handle.use_next()
        if self.engine is not None:
            self._turn_to(self._handle.make_own)

    @property
    def offers(self) -> tuple[str, ...] | None:
        """Model names that a remote engine opens; None if the engine reads local folders."""
        return getattr(self.engine, "offers", ()) if self.is_remote else None

    @property
    def gives_back(self) -> Mapping[str, int]:
        """Bytes by device that the loaded model frees before another one loads; none if remote."""
        if self.plan is None or self.model is None or self.offers is not None:
            return {}
        return {CPU: self.plan.host_predicted, self.model.device: self.plan.predicted}

    @property
    def continues(self) -> Continues:
        """How the engine continues a reply."""
        return getattr(self.engine, "continues", Continues.TOKENS)

    @property
    def place(self) -> str:
        """Name of a remote engine's host; "" if local."""
        return str(getattr(self.engine, "place", "")) if self.is_remote else ""

    @property
    def look_only(self) -> str:
        """Why this window may not open models or change settings; "" if it may."""
        if not self.is_remote or getattr(self.engine, "may_control", True):
            return ""
        return f"Windows attached to {self.place} may only view and chat (--no-control)."

    @property
    def locked(self) -> str:
        """Why the user may not change settings now; "" if they may."""
        return self.look_only or self.lock

    @property
    def busy(self) -> str:
        """Why nothing can be measured now: settings are locked, or those that this window sent are
        being applied (an answer to another window may end that early). "" if nothing is."""
        return self.lock or ("Settings are being applied." if self._num_changing else "")

    def lock_settings(self, why: str) -> None:
        """Changes until then are not the user's. "": unlock."""
        if why != self.lock:
            self.lock = why
            self.lock_changed.emit()

    def attach(self, make_thread: ThreadFactory) -> None:
        """Switch to a remote engine; its events report what it has loaded."""
        self._turn_to(make_thread)
        self._handle.start()
        self.take_answer(LinkChanged(LinkState.CONNECTING, time.perf_counter()))

    def attach_again(self) -> None:
        """Connect to the remote engine again after the connection closed."""
        if self.is_remote:
            self.attach(self._handle.make)

    def detach(self) -> None:
        """Back to a local engine with nothing loaded."""
        if self.is_remote:
            self._turn_to(self._handle.make_own)
            self.link_changed.emit(None)

    def _turn_to(self, make_thread: ThreadFactory) -> None:
        self._handle.leave(make_thread)
        self.dispatcher.keep_written()  # text stays; the rest is outdated
        self.link = None
        words = ErrorInfo("Reply aborted: the window switched to another engine.")
        for request_id in sorted(self._requests):
            self.take_answer(messages.RequestFailed(request_id, words))
        self.take_answer(messages.Unloaded())

    # Commands --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a request added now would run."""
        return self.state is EngineState.READY

    def load(self, config: EngineConfig) -> None:
        self.turn_to_next()
        self._set_state(EngineState.LOADING)
        self._submit(messages.Load(config))

    def cancel_load(self) -> None:
        if self.engine is not None:
            self.engine.cancel_load()

    def unload(self) -> None:
        self._submit(messages.Unload())

    def set_listener(self, listener: Callable[[messages.Event], None], *, streams: bool) -> None:
        """Call `listener` with the events of the local engine, on its thread: it must return at
        once and raise nothing. `streams`: with outputs and snapshots too."""
        self._listener, self._hears_stream = listener, streams

    def pass_on(self, command: messages.Command) -> None:
        """Forward a command to the local engine, from any thread; dropped if it does not run."""
        engine = self.engine
        if engine is not None and not self.is_remote:
            engine.submit(command)

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
        """Request the content of a KV block; `block_inspected` answers."""
        self._submit(messages.InspectBlock(block))

    def measure_peaks(self) -> None:
        """Measure the machine's peaks; `peaks_measured` answers."""
        self._submit(messages.MeasurePeaks())

    def profile_steps(self, num_steps: int) -> None:
        """Profile the next steps; `steps_profiled` answers."""
        self._submit(messages.ProfileSteps(num_steps))

    def count_tokens(self, key: str, text: str) -> None:
        """Count the tokens of a text; `tokens_counted` answers under `key`. Does nothing without an
        open model."""
        if self.is_ready:
            self._submit(messages.CountTokens(key, text))

    def reconfigure(self, **changes: Any) -> None:
        self._num_changing += 1
        self.reconfiguring.emit(changes)
        self._submit(messages.Reconfigure(changes))

    def shutdown(self, timeout: float = 5.0) -> None:
        """End the engine's thread and deliver its last events. The only call that blocks."""
        self._closed = True
        self.dispatcher.is_closed = True
        garbage.use(lambda: False)  # this thread waits for the engine's, and collects nothing
        self._handle.end(timeout)
        self.dispatcher.close()

    def _submit(self, command: messages.Command) -> None:
        if self._closed:
            return
        self._handle.start().submit(command)

    # The engine's thread ---------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Called by the engine's thread: queue the event, wake the window if needed."""
        if self._hears_stream or not isinstance(event, _STREAM):
            self._tell_listener(event)
        self.dispatcher.put(event)

    def _tell_listener(self, event: Event) -> None:
        if self._listener is None or self.is_remote:
            return
        if not isinstance(event, LinkChanged | Past | Remark | Traced):
            self._listener(event)

    # The GUI thread: called by the dispatcher ------------------------------------------------

    def take_outputs(self, batch: list[messages.OutputEvent]) -> None:
        batch = [one if one.error is None else event_by_row(one) for one in batch]
        ended = [event for event in batch if event.finish_reason is not None]
        self._requests.difference_update(event.request_id for event in ended)
        self.outputs.emit(batch)
        for event in ended:
            self.ended.emit(event)

    def take_progress(self, progress: messages.LoadProgress) -> None:
        if self.state is EngineState.EMPTY:  # a remote engine is loading already
            self._set_state(EngineState.LOADING)
        self.load_progress.emit(progress)

    def take_snapshot(self, snapshot: EngineSnapshot) -> None:
        self.latest = snapshot
        self.snapshot.emit(snapshot)

    def take_answer(self, event: Event) -> None:
        event = event_by_row(event)
        if isinstance(event, messages.Stalled):
            self._set_stalled(event)
        elif isinstance(event, _ENDS_STALL):
            self._set_stalled(None)
        match event:
            case LinkChanged():
                self.link = event
                self.link_changed.emit(event)
            case Past(snapshots):
                self.past.emit(snapshots)
            case messages.Loaded():
                event = dataclasses.replace(event, model=titled(event.model))
                self._now(EngineState.READY, event)
                self.loaded.emit(event)
            case messages.LoadFailed(serving=serving):
                if serving is None:
                    self._now(EngineState.EMPTY)
                else:
                    self._set_state(EngineState.READY)
                self.load_failed.emit(event)
            case messages.Unloaded():
                self._now(EngineState.EMPTY)
                self.unloaded.emit()
            case messages.Reconfigured(config):
                self.config, self._num_changing = config, max(0, self._num_changing - 1)
                if event.model is not None:
                    self.model, self.plan = titled(event.model), event.plan
                self._set_state(self.state)
                self.reconfigured.emit(event)
            case messages.MadeRoom(_, model, plan):
                self.model, self.plan = titled(model), plan
                self._set_state(self.state)
                self.made_room.emit(event)
            case messages.ReconfigureFailed(config):
                self.config, self._num_changing = config, max(0, self._num_changing - 1)
                self.reconfigure_failed.emit(event)
            case messages.RequestFailed():
                self._requests.discard(event.request_id)
                self.request_failed.emit(event)
            case messages.EngineCrashed():
                self._requests.clear()
                self._now(EngineState.CRASHED)
                self.crashed.emit(event)
                if event.is_restarting:
                    self._set_state(EngineState.LOADING)
            case Remark():
                self.remarked.emit(event)
            case Traced():
                self.traced.emit(event)
            case messages.TokensCounted():
                self.tokens_counted.emit(event)
            case messages.BlockInspected():
                self.block_inspected.emit(event)
            case messages.PeaksMeasured():
                self.peaks_measured.emit(event)
            case messages.StepsProfiled():
                self.steps_profiled.emit(event)

    def _now(self, state: EngineState, loaded: messages.Loaded | None = None) -> None:
        self.model, self.config, self.plan = (
            (None, None, None) if loaded is None else (loaded.model, loaded.config, loaded.plan)
        )
        self.latest, self._num_changing = None, 0
        self.dispatcher.snapshots.clear()  # of the previous model
        self._set_state(state)

    def _set_stalled(self, stalled: messages.Stalled | None) -> None:
        if stalled is not self.stalled:
            self.stalled = stalled
            self.stalled_changed.emit(stalled)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self.state_changed.emit(state)
