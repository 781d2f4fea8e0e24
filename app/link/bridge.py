"""The border between the window and the engine's thread.

    GUI thread                                    engine thread
    bridge.add_request(...)  -- submit(command) -->  queue
    Qt signals  <-- Deliveries <-- on_event(event)

Nothing here waits for the engine, and the engine never waits for the window. `Deliveries` says
when an event is handed on: what is urgent (the first token of a reply, its end, errors, answers to
commands) at once, the rest together.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.clients.target import Event, LinkChanged, LinkState, Past, Remark
from app.link.dispatcher import Deliveries, titled
from app.link.engine_handle import EngineHandle, EngineThreadLike, ThreadFactory, engine_thread
from app.link.row_names import event_by_row
from engine import messages
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.hardware.devices import CPU, rank_devices
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, MemoryPlan, ModelInfo


class EngineState(StrEnum):
    EMPTY = "no model"
    LOADING = "loading"
    READY = "ready"
    CRASHED = "crashed"


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
        self._handle = EngineHandle(make_thread, self.on_event)
        self._closed = False
        self._listeners: tuple[Callable[[messages.Event], None], ...] = ()
        self._requests: set[str] = set()  # that have not ended
        self._deliveries = Deliveries(self, self)
        self.state = EngineState.EMPTY
        self.model: ModelInfo | None = None
        self.config: EngineConfig | None = None
        self.plan: MemoryPlan | None = None
        self.link: LinkChanged | None = None

    def beside(self) -> EngineBridge:
        """Another engine of our own, with nothing loaded. Whoever asks for it ends it by
        `shutdown`."""
        return EngineBridge(self._handle.make_own)

    # Which engine ----------------------------------------------------------------------------

    @property
    def is_remote(self) -> bool:
        """Whether the engine runs elsewhere."""
        return self._handle.is_remote

    @property
    def engine(self) -> EngineThreadLike | None:
        """What stands for the engine now: a remote one tells more of itself."""
        return self._handle.engine

    @property
    def has_next(self) -> bool:
        """Whether the next model is opened by an engine of our own of another kind."""
        return self._handle.make_next is not None

    def make_next(self, make_thread: ThreadFactory) -> None:
        """Engines of our own are of this kind, from the next model on. What runs goes on; a
        comparison beside it has an engine of the kind that runs."""
        self._handle.make_next = None if make_thread is self._handle.make_own else make_thread
        if self.engine is None:
            self.turn_to_next()

    def turn_to_next(self) -> None:
        """The engine of `make_next` takes the place of the one before, if there is one to."""
        if not self.has_next or self.is_remote:
            return
        self._handle.use_next()
        if self.engine is not None:
            self._turn_to(self._handle.make_own)

    @property
    def offers(self) -> tuple[str, ...] | None:
        """Names of the models that an engine elsewhere opens; None where the engine reads the
        folders of this machine."""
        return self._handle.offers

    @property
    def gives_back(self) -> Mapping[str, int]:
        """Bytes by device that the model loaded now has, and gives back before another is loaded;
        of an engine elsewhere nothing of this machine."""
        if self.plan is None or self.model is None or self.offers is not None:
            return {}
        # the plan is that of each rank; stages have about as much as the first, of which it is
        devices = rank_devices(self.model.device, max(1, self.model.num_gpus))
        return {CPU: self.plan.host_predicted, **dict.fromkeys(devices, self.plan.predicted)}

    @property
    def place(self) -> str:
        """Where an engine elsewhere is, as people say it; "" for one of our own."""
        return self._handle.place

    @property
    def look_only(self) -> str:
        """Why this window may not open models or change settings there; "" where it may."""
        return self._handle.look_only

    def attach(self, make_thread: ThreadFactory) -> None:
        """Leave the engine for another, whose events tell what it has loaded."""
        self._turn_to(make_thread)
        self._handle.start()
        self.take_answer(LinkChanged(LinkState.CONNECTING, time.perf_counter()))

    def attach_again(self) -> None:
        """The engine elsewhere on a new line, after the one before ended for good."""
        if self.is_remote:
            self.attach(self._handle.maker)

    def detach(self) -> None:
        """Back to an engine of our own, with nothing loaded."""
        if self.is_remote:
            self._turn_to(self._handle.make_own)
            self.link_changed.emit(None)

    def _turn_to(self, make_thread: ThreadFactory) -> None:
        self._handle.leave(make_thread)
        self._deliveries.keep_written()  # it stays; what else was said is not true any more
        self.link = None
        words = ErrorInfo("The window turned to another engine; the reply was stopped.")
        for request_id in sorted(self._requests):
            self.take_answer(messages.RequestFailed(request_id, words))
        self.take_answer(messages.Unloaded())

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
        if self.engine is not None:
            self.engine.cancel_load()

    def unload(self) -> None:
        self._submit(messages.Unload())

    def add_listener(self, listener: Callable[[messages.Event], None]) -> None:
        """From now on `listener` gets every event of our own engine, on its thread: it must return
        at once, and raise nothing."""
        self._listeners = (*self._listeners, listener)

    def pass_on(self, command: messages.Command) -> None:
        """Give a command of somebody else to our own engine, from any thread. Nothing happens where
        it does not run."""
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
        self._deliveries.stop_waking()
        self._handle.end(timeout)
        self._deliveries.close()

    def _submit(self, command: messages.Command) -> None:
        if self._closed:
            return
        self._handle.start().submit(command)

    # The engine's thread ---------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Called by the engine's thread: note the event, and wake the window once if need be."""
        if not self.is_remote and not isinstance(event, LinkChanged | Past | Remark):
            for listener in self._listeners:
                listener(event)
        self._deliveries.put(event)

    # The GUI thread: what `Deliveries` hands on ----------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Whether everything that was said was handed on."""
        return self._deliveries.is_at_rest

    @property
    def num_waiting(self) -> int:
        """Events that this thread did not look at yet."""
        return self._deliveries.num_waiting

    @property
    def snapshot_at(self) -> float:
        """When the last state was handed on."""
        return self._deliveries.snapshot_at

    def take_outputs(self, batch: list[messages.OutputEvent]) -> None:
        ended = {event.request_id for event in batch if event.finish_reason is not None}
        self._requests -= ended
        self.outputs.emit([one if one.error is None else event_by_row(one) for one in batch])

    def take_progress(self, progress: messages.LoadProgress) -> None:
        if self.state is EngineState.EMPTY:  # an engine elsewhere loads already
            self._set_state(EngineState.LOADING)
        self.load_progress.emit(progress)

    def take_snapshot(self, snapshot: EngineSnapshot) -> None:
        self.snapshot.emit(snapshot)

    def take_answer(self, event: Event) -> None:
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
                self.loaded.emit(dataclasses.replace(event_by_row(event), model=model))
            case messages.LoadFailed(serving=None):
                self._now(EngineState.EMPTY)
                self.load_failed.emit(event_by_row(event))
            case messages.LoadFailed():
                self._set_state(EngineState.READY)
                self.load_failed.emit(event_by_row(event))
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
                self.reconfigure_failed.emit(event_by_row(event))
            case messages.RequestFailed():
                self._requests.discard(event.request_id)
                self.request_failed.emit(event_by_row(event))
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
        self._deliveries.drop_states()
        self._set_state(state)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self.state_changed.emit(state)
