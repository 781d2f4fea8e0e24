"""`ServerController`: starts and stops the server, without blocking the window.

GUI thread     start, stop  -- task -->  ApiServer (a thread of its own)
engine thread  on_event  -- listener of the bridge -->  EngineClient

Outputs and snapshots go that way while the server runs. Until then the client keeps the snapshots
that the window shows, for windows that attach later.
"""

from __future__ import annotations

import dataclasses
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, QTimer, Signal

from app.clients.target import LinkChanged
from app.features.serve.addresses import is_this_server, next_free_port, url_of
from app.features.serve.connections import KeyCache
from app.link.bridge import EngineBridge, EngineState
from app.link.tasks import run_task
from app.server.call import origin_of
from app.server.call_log import CallLog
from app.server.engine_client import EngineClient
from app.server.options import ServingChoice
from app.storage.model_sources import STARTER_TITLE, is_starter
from engine import messages
from engine.errors import ErrorInfo, InferdeckError, describe
from engine.snapshot import EngineSnapshot, FinishReason, ModelInfo, RequestState

if TYPE_CHECKING:
    from app.server.server import ApiServer

log = logging.getLogger(__name__)

KEY = "server"
"""Keyring name of the server's key."""

WATCH_MS = 500
REMOTE = ErrorInfo(
    "This window uses a remote engine.",
    "Switch to the local engine to serve it.",
)
PAUSED = ErrorInfo(
    "The server is off while this window uses a remote engine.",
    "It starts again with the local engine.",
)
ENDED = ErrorInfo("The server stopped unexpectedly.", "Check the log, then restart the server.")


class ServingState(StrEnum):
    OFF = "stopped"
    STARTING = "starting"
    ON = "serving"
    STOPPING = "stopping"


class Figures(NamedTuple):
    """Server load. windows: attached remote windows. running, waiting: client requests in the
    engine; aborted: client requests that ended unfinished since the program started."""

    calls_per_s: float
    connections: int
    windows: int
    running: int
    waiting: int
    aborted: int
    total: int


class ServerController(QObject):
    """`changed`: state, problem or health; `moved`: the figures, while serving."""

    changed = Signal()
    moved = Signal()

    def __init__(self, bridge: EngineBridge, keys: KeyCache, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge, self._keys = bridge, keys
        self.state = ServingState.OFF
        self.choice = ServingChoice()  # that was started with
        self.problem: ErrorInfo | None = None
        self.free_port: int | None = None
        """A free port, where the requested one is in use."""
        self.calls = CallLog()
        self._engine_client = EngineClient(bridge.pass_on, pulse=lambda: bridge.pulse)
        self._server: ApiServer | None = None
        self._waits_for_key = False
        self._resumes = False  # stopped for a remote engine
        self._running = self._waiting = self._aborted = 0
        self._watch = QTimer(self, interval=WATCH_MS)
        self._watch.timeout.connect(self._look)
        bridge.set_listener(self._on_engine_event, streams=False)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.ended.connect(self._on_ended)
        bridge.state_changed.connect(lambda state: self.changed.emit())
        bridge.unloaded.connect(self._on_unloaded)
        bridge.link_changed.connect(self._on_link)
        keys.arrived.connect(self._on_key)

    # What the user does ------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return self.state is ServingState.ON

    @property
    def can_start(self) -> bool:
        return self.state is ServingState.OFF

    def start(self, choice: ServingChoice) -> None:
        """Start; `changed` follows, with `problem` on failure."""
        if not self.can_start:
            return
        self.choice, self.problem, self.free_port = choice, None, None
        if self._bridge.is_remote:
            self._refuse(PAUSED if self._resumes else REMOTE)
            return
        self._resumes = False
        self._set(ServingState.STARTING)
        self._waits_for_key = True
        self._keys.fetch(KEY)

    def stop(self) -> None:
        """Reject new calls and finish running replies. A second call aborts them."""
        server = self._server
        if server is None:
            return
        if self.state is ServingState.STOPPING:
            server.hurry()
        elif self.state is ServingState.ON:
            self._watch.stop()
            self._set(ServingState.STOPPING)
            run_task(self, server.stop, self._on_stopped, self._on_not_stopped)

    def close_down(self) -> None:
        """Abort everything: the program exits."""
        self._watch.stop()
        server, self._server = self._server, None
        self.state = ServingState.OFF
        if server is not None:
            server.hurry()
            if not server.stop():
                log.error("the server thread did not stop")

    # What is so --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        port = int(self._server.url.rsplit(":", 1)[1]) if self._server else self.choice.port
        return url_of(self.choice.host, port)

    def is_own(self, base_url: str) -> bool:
        """Whether an address is that of this server, while it serves."""
        return self._server is not None and is_this_server(base_url, self.url)

    @property
    def model_name(self) -> str:
        """The served model name; "" without a model."""
        model = self._engine_client.model
        return (self.choice.model_name or model.name) if model is not None else ""

    @property
    def figures(self) -> Figures:
        server = self._server
        return Figures(
            self.calls.rate(), server.num_connections if server is not None else 0,
            server.num_windows if server is not None else 0, self._running, self._waiting,
            self._aborted, self.calls.total,
        )  # fmt: skip

    @property
    def health(self) -> str:
        """What clients get now."""
        if self._bridge.stalled is not None:
            return "The engine does not respond. /health returns 503 until it recovers."
        match self._bridge.state:
            case EngineState.READY:
                return f"Serving {self.model_name or 'the model'}."
            case EngineState.LOADING:
                return "Model loading. Calls and /health return 503 with Retry-After."
            case EngineState.CRASHED:
                return "The engine crashed. Calls return 503 until it is restarted."
            case _:
                return "No model is loaded. Calls return 503 with Retry-After."

    # Starting and stopping ---------------------------------------------------------------------

    def _on_key(self, name: str) -> None:
        if name != KEY or not self._waits_for_key:
            return
        self._waits_for_key = False
        choice, key = self.choice, self._keys.key(KEY)
        run_task(self, lambda: self._serve(choice, key), self._on_outcome, self._on_failed)

    def _serve(self, choice: ServingChoice, key: str) -> tuple[ErrorInfo | None, int | None]:
        """The error and a free port, if any. Runs in a task: imports take a moment."""
        from app.server.server import ApiServer, PortInUseError

        try:
            server = ApiServer(self._engine_client, choice.options(key), self.calls)
            server.bind()
            self._server = server  # whoever ends the program now, stops it
            server.start()
        except PortInUseError as error:
            remedy = "Stop the program using this port, or choose another port."
            info = describe(error)._replace(remedy=remedy)
            return info, next_free_port(choice.host, choice.port)
        except InferdeckError as error:
            info = describe(error)
            return info._replace(remedy=info.remedy.replace("--port", "the port")), None
        return None, None

    def _on_outcome(self, outcome: tuple[ErrorInfo | None, int | None]) -> None:
        error, self.free_port = outcome
        if error is not None:
            self._on_failed(error)
            return
        self._watch.start()
        self._set(ServingState.ON)

    def _on_failed(self, error: ErrorInfo) -> None:
        self._server = None
        self._refuse(error)

    def _on_stopped(self, has_ended: bool) -> None:
        if has_ended:
            self._server = None
            self._set(ServingState.OFF)
            self._resume()
        else:
            self._on_not_stopped(ErrorInfo("The server did not stop.", "Try stopping it again."))

    def _on_not_stopped(self, error: ErrorInfo) -> None:
        self.problem = error
        self._watch.start()
        self._set(ServingState.ON)

    def _refuse(self, error: ErrorInfo) -> None:
        self.problem = error
        self._set(ServingState.OFF)

    def _set(self, state: ServingState) -> None:
        self.state = state
        self._bridge.set_listener(self._on_engine_event, streams=state is not ServingState.OFF)
        self.changed.emit()

    # What happens ------------------------------------------------------------------------------

    def _on_engine_event(self, event: messages.Event) -> None:
        """On the engine's thread."""
        if isinstance(event, messages.Loaded) or (
            isinstance(event, messages.Reconfigured) and event.model is not None
        ):
            event = dataclasses.replace(event, model=_named(event.model))
        self._engine_client.on_event(event)

    def _on_unloaded(self) -> None:
        if self._bridge.engine is None:  # left for another: it says nothing of it by itself
            self._engine_client.on_left()

    def _on_link(self, link: LinkChanged | None) -> None:
        """The window switched between local and remote engine."""
        if link is not None and not self._bridge.is_remote:
            return
        if link is not None and self.state is ServingState.ON:
            self.problem, self._resumes = PAUSED, True
            self.stop()
        elif link is None:
            self._resume()
        self.changed.emit()

    def _resume(self) -> None:
        """Start again what was stopped for a remote engine."""
        if self._resumes and self.can_start and not self._bridge.is_remote:
            self.start(self.choice)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        if self._server is not None:
            own = [r.state for r in snapshot.requests if origin_of(r.request_id) is not None]
            self._running = sum(state is RequestState.RUNNING for state in own)
            self._waiting = len(own) - self._running
        elif self.state is ServingState.OFF and not self._bridge.is_remote:
            self._engine_client.keep(snapshot)

    def _on_ended(self, event: messages.OutputEvent) -> None:
        is_aborted = event.finish_reason is FinishReason.ABORT
        if self._server is not None and is_aborted and origin_of(event.request_id) is not None:
            self._aborted += 1

    def _look(self) -> None:
        server = self._server
        if server is not None and not server.is_running:
            self._watch.stop()
            self._on_failed(ENDED)
        self.moved.emit()


def _named(model: ModelInfo | None) -> ModelInfo:
    assert model is not None
    return dataclasses.replace(model, name=STARTER_TITLE) if is_starter(model.path) else model
