"""Passes requests to the engine's thread and its events to the server's loop.

    engine thread   on_event -> deque, at most one wake-up posted
    server's loop   wake-up -> replies and metrics

Events that arrive while no loop is attached are stored as far as a window that attaches later needs
them (`AttachState`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.server.attach_state import AttachState
from app.server.call import OutputCollector
from app.server.errors import ApiError, failed, too_busy, unavailable
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import describe
from engine.heartbeat import Pulse
from engine.snapshot import EngineSnapshot, ModelInfo
from engine.telemetry.metrics import EngineMetrics

log = logging.getLogger(__name__)


class EngineClient:
    """Call `on_event` from the engine's thread; use everything else on the server's loop only.

    `submit` and `cancel_load` are the engine's and return at once. `listener` receives every event,
    on the loop. `foreign`: engine requests that did not come through `send`; they count against the
    queue limit too. `pace_s`: maximum delay of events that are not urgent (text after the first
    token, snapshots): each turn of the loop takes the interpreter from the engine. `pulse`: the
    engine thread's; None where the engine reports none.
    """

    def __init__(
        self,
        submit: Callable[[m.Command], None],
        cancel_load: Callable[[], None] = lambda: None,
        pace_s: float = 0.0,
        pulse: Callable[[], Pulse | None] = lambda: None,
    ) -> None:
        self._pace_s = pace_s
        self.submit = submit
        self.cancel_load = cancel_load
        self.pulse = pulse
        self.attach_state = AttachState()
        self.listener: Callable[[m.Event], None] | None = None
        self.foreign: set[str] = set()
        self._events: deque[m.Event] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_woken = False  # it comes at once
        self._is_resting = False  # wakes after `pace_s`
        self._collectors: dict[str, OutputCollector] = {}  # by request id
        self.metrics = EngineMetrics()
        self.model: ModelInfo | None = None
        self.config: EngineConfig | None = None
        self.is_closing = False

    # -- the engine's thread ----------------------------------------------------------------

    def on_event(self, event: m.Event) -> None:
        match event:
            case m.Loaded(config, model):
                self.model, self.config = model, config
            case m.Reconfigured(config):
                self.config = config
                if event.model is not None and event.model != self.model:
                    self.model = event.model  # an equal one stays: its tokenizer goes with it
            case m.ReconfigureFailed(config):
                self.config = config
            case m.LoadFailed() if event.serving is not None:
                pass  # what serves on has been there all the time, or announces itself
            case m.Unloaded() | m.EngineCrashed() | m.LoadFailed():
                self.model = self.config = None
        with self._lock:
            if self._loop is None:
                self.attach_state.note(event)
                return
            self._events.append(event)
            may_rest = self._pace_s > 0 and _may_rest(event)
            if self._is_woken or (may_rest and self._is_resting):
                return
            self._is_resting, self._is_woken = may_rest, not may_rest
            loop = self._loop
        with suppress(RuntimeError):  # the loop was closed in this moment
            if may_rest:
                loop.call_soon_threadsafe(loop.call_later, self._pace_s, self._hand_on)
            else:
                loop.call_soon_threadsafe(self._hand_on)

    def keep(self, snapshot: EngineSnapshot) -> None:
        """From any thread, while no loop is attached: for windows that attach later."""
        with self._lock:
            if self._loop is None:
                self.attach_state.note(m.SnapshotEvent(snapshot))

    def on_left(self) -> None:
        """From any thread: another engine replaces this one, which sends no more events."""
        self.on_event(m.Unloaded())
        with self._lock:
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed in this moment
                loop.call_soon_threadsafe(self._fail_all)

    # -- the server's loop ------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loop, self._is_woken, self._is_resting = loop, False, False
            self._events.clear()
        self.is_closing = False

    def detach(self) -> None:
        """Deliver no more events, and abort unfinished requests."""
        self.abort_all()
        with self._lock:
            self._loop = None
            for event in self._events:
                self.attach_state.note(event)
            self._events.clear()
        self._collectors.clear()

    def room(self, max_queued: int) -> int:
        """How many more requests fit if `max_queued` may wait."""
        runs = 0 if self.config is None else self.config.max_num_seqs
        return runs + max_queued - len(self._collectors) - len(self.foreign)

    def knows(self, request_id: str) -> bool:
        """Whether a call has a request of this name in the engine."""
        return request_id in self._collectors

    @property
    def num_in_flight(self) -> int:
        return len(self._collectors)

    def serving(self) -> tuple[ModelInfo, EngineConfig]:
        """The loaded model; raises ApiError 503 if there is none."""
        model, config = self.model, self.config
        if self.is_closing:
            raise unavailable("The server is stopping.", "stopping")
        if model is None or config is None:
            raise unavailable("No model is loaded. Try again shortly.")
        return model, config

    @property
    def is_stuck(self) -> bool:
        """Whether the engine is stalled or dead."""
        pulse = self.pulse()
        is_overdue = pulse is not None and (pulse.is_stuck or not pulse.is_alive)
        return is_overdue or self.attach_state.stalled is not None

    def send(self, requests: Sequence[m.AddRequest], max_queued: int) -> OutputCollector:
        """Give the requests of one call to the engine, together.

        Raises ApiError 429 if more than `max_queued` would wait, 503 without a model.
        """
        self.serving()
        room, running = self.room(max_queued), len(self._collectors) + len(self.foreign)
        if len(requests) > room:
            raise too_busy(
                f"The queue has {max(room, 0)} free slots for {len(requests)} requests; "
                f"{running} are running or waiting."
                if len(requests) > 1
                else f"The queue is full: {running} requests are running or waiting."
            )
        names = [request.request_id for request in requests]
        outputs = OutputCollector(names, self._abort, self.metrics.observe_first_token)
        for request in requests:
            self._collectors[request.request_id] = outputs
            self.submit(request)
        return outputs

    def abort_all(self) -> None:
        for request_id in list(self._collectors):
            self.submit(m.Abort(request_id))

    def _abort(self, request_id: str) -> None:
        # It stays registered until the engine reports its end: a client that sends and hangs up
        # in a loop still meets the queue limit.
        if request_id in self._collectors:
            self.submit(m.Abort(request_id))

    def _hand_on(self) -> None:
        with self._lock:
            self._is_woken = self._is_resting = False
            events = list(self._events)
            self._events.clear()
        for event in events:
            request_id = getattr(event, "request_id", "")
            outputs = self._collectors.get(request_id)
            try:
                self._take(event)
            except BaseException as error:  # of one event: the others' calls still wait for theirs
                log.exception("cannot handle %s", type(event).__name__)
                if outputs is not None:
                    self._collectors.pop(request_id, None)
                    outputs.on_failed(request_id, failed(describe(error)))
                    self.submit(m.Abort(request_id))

    def _take(self, event: m.Event) -> None:
        self.attach_state.note(event)
        if self.listener is not None:
            self.listener(event)
        match event:
            case m.OutputEvent():
                self._on_output(event)
            case m.RequestFailed(request_id, error) if self.model:
                self._fail(request_id, failed(error))
            case m.RequestFailed(request_id, error):  # the model was closed on the way
                self._fail(request_id, unavailable(f"{error.cause} Try again shortly."))
            case m.SnapshotEvent():
                self.metrics.observe_snapshot(event.snapshot)
            case m.EngineCrashed():
                log.error("the engine crashed: %s\n%s", event.error.cause, event.traceback)
                for request_id in list(self._collectors):
                    self._fail(request_id, failed(event.error))

    def _on_output(self, event: m.OutputEvent) -> None:
        if event.finish_reason is None:
            outputs = self._collectors.get(event.request_id)
        else:
            outputs = self._collectors.pop(event.request_id, None)
            if event.times is not None:
                self.metrics.observe_finished(event.times, event.finish_reason)
                self.metrics.observe_lengths(event.num_prompt_tokens, event.times.num_output_tokens)
        if outputs is not None:
            outputs.on_output(event)
        elif event.is_first and event.times is not None and event.times.ttft_s is not None:
            self.metrics.observe_first_token(event.times.ttft_s)  # of a window

    def _fail_all(self) -> None:
        error = unavailable("The window switched to another engine. Try again shortly.")
        for request_id in list(self._collectors):
            self._fail(request_id, error)

    def _fail(self, request_id: str, error: ApiError) -> None:
        outputs = self._collectors.pop(request_id, None)
        if outputs is not None:
            outputs.on_failed(request_id, error)


def _may_rest(event: m.Event) -> bool:
    if isinstance(event, m.OutputEvent):
        return not event.is_first and event.finish_reason is None
    return isinstance(event, m.SnapshotEvent)
