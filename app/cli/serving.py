"""A server without a window: loads the model, serves it, and restarts an engine that crashed."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.session import StatusLine
from app.server.options import ServerOptions
from app.storage.model_sources import model_title
from engine.config import EngineConfig
from engine.errors import ErrorInfo, InferdeckError
from engine.units import bytes_text, rough_duration

# What follows needs numpy or the server's libraries, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.messages import Event, Loaded

SNAPSHOT_INTERVAL_S = 0.25
LOOK_S = 0.5
STEADY_S = 60.0
"""An engine that crashes again within this time is not restarted."""


class IfLoadFails(Enum):
    """What the failure of the current load means for the server."""

    END = auto()  # a load of ours: there is nothing to serve
    LOAD_LATEST = auto()  # a window's load, which replaces a stuck engine
    SERVE_ON = auto()  # any other load of a window


class Serving:
    """The engine's thread, the server, and the handling of load and crash events."""

    def __init__(self, config: EngineConfig, options: ServerOptions, *, as_json: bool) -> None:
        from app.server.engine_client import EngineClient
        from app.server.server import ApiServer
        from engine.engine_thread import EngineThread

        self._config = self._latest = config
        self._as_json = as_json
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._if_load_fails = IfLoadFails.END
        self._loaded_at = 0.0
        self._status = StatusLine()
        self._thread = EngineThread(self._on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_S)
        self._engine_client = EngineClient(
            self._thread.submit, self._thread.cancel_load, pulse=lambda: self._thread.pulse
        )
        self._server = ApiServer(self._engine_client, options)

    def run(self) -> int:
        """Raises InferdeckError if the engine or the server fails for good."""
        try:
            self._server.bind()  # a port in use is found out before the model is read
            self._thread.start()
            if not self._as_json:
                print(loading_text(self._config), flush=True)
            self._load(self._config)
            while (loaded := self._handle(_next(self._events))) is None:
                pass
            self._server.start()
            self._say_where(loaded)
            while self._server.is_running:
                self._handle(_next(self._events))
            raise InferdeckError(
                "The server stopped unexpectedly.", "Check the log, then start it again."
            )
        except KeyboardInterrupt:
            return self._stop()
        finally:
            self._status.clear()
            self._server.stop()
            self._thread.stop()

    def _on_event(self, event: Event) -> None:
        """On the engine's thread."""
        from engine.messages import (
            EngineCrashed,
            Loaded,
            LoadFailed,
            LoadProgress,
            Reconfigured,
            Stalled,
        )

        self._engine_client.on_event(event)
        if isinstance(event, (Loaded, Reconfigured)):
            self._latest = event.config  # an attached window may have changed it
        if isinstance(event, (EngineCrashed, Loaded, LoadFailed, LoadProgress, Stalled)):
            self._events.put(event)

    def _load(self, config: EngineConfig) -> None:
        from engine.messages import Load

        self._if_load_fails = IfLoadFails.END
        self._thread.submit(Load(config))

    def _handle(self, event: Event | None) -> Loaded | None:
        """The event, if it ends a load that the server waits for. A crashed engine is restarted,
        unless it crashes again within STEADY_S. Raises InferdeckError then, and if it does not
        load."""
        from engine.messages import EngineCrashed, Loaded, LoadFailed, LoadProgress, Stalled

        match event:
            case Stalled():
                _say(
                    f"the engine has not answered for {rough_duration(event.seconds)} "
                    f"({event.doing}). If it does not recover, restart it from an attached window, "
                    "or restart the server."
                )
            case EngineCrashed(is_restarting=True):  # by a window's Load
                _say(f"{event.error.cause} Restarting the engine.")
                self._if_load_fails = IfLoadFails.LOAD_LATEST
            case LoadProgress() | Loaded() | LoadFailed() if not self._awaits_load:
                pass
            case LoadProgress(stage, done, total):
                self._status.loading(stage, done, total)
            case Loaded():
                self._status.clear()
                self._if_load_fails, self._loaded_at = IfLoadFails.SERVE_ON, time.monotonic()
                for notice in event.model.notices:
                    print(f"note: {notice}", file=sys.stderr)
                if event.without_draft is not None:
                    cause = event.without_draft.cause
                    print(f"note: speculative decoding is off: {cause}", file=sys.stderr)
                return event
            case LoadFailed(cancelled=True):  # by a window
                self._status.clear()
                _say(f"{event.error.cause} No model is loaded.")
                self._if_load_fails = IfLoadFails.SERVE_ON
            case LoadFailed() | EngineCrashed():
                self._status.clear()
                is_early = not self._awaits_load and time.monotonic() - self._loaded_at < STEADY_S
                if is_early or self._if_load_fails is IfLoadFails.END:
                    raise _as_error(event.error)
                _say(f"{event.error.cause} Restarting the engine.")
                self._load(self._latest)
        return None

    @property
    def _awaits_load(self) -> bool:
        return self._if_load_fails is not IfLoadFails.SERVE_ON

    def _say_where(self, loaded: Loaded) -> None:
        name = self._server.options.model_name or loaded.model.name
        if self._as_json:
            ready = {"url": self._server.url, "model": name, "pid": os.getpid()}
            print(json.dumps(ready), flush=True)
        else:
            print(f"Serving {name} on {self._server.url}/v1 (press Ctrl-C to stop)", flush=True)

    def _stop(self) -> int:
        """0 if all replies ended in time. A second Ctrl-C does not wait for replies."""
        if not self._server.is_running:
            return 130  # it was not serving yet
        print("inferdeck: stopping; press Ctrl-C again to abort running requests", file=sys.stderr)
        try:
            return 0 if self._server.stop() else 1
        except KeyboardInterrupt:
            self._server.stop()
            return 130


def loading_text(config: EngineConfig) -> str:
    """The model and the size of its files, before any of them is read."""
    name = model_title(config.model)
    if config.load_format == "dummy":
        return f"Loading {name} (random weights)"
    size = sum(file.stat().st_size for file in Path(config.model).glob("*.safetensors"))
    return f"Loading {name} ({bytes_text(size)})" if size else f"Loading {name}"


def _say(text: str) -> None:
    print(f"inferdeck: {text}", file=sys.stderr)


def _next(events: queue.SimpleQueue[Event]) -> Event | None:
    """None if there is none for LOOK_S. (Without a time limit Windows would not see Ctrl-C.)"""
    try:
        return events.get(timeout=LOOK_S)
    except queue.Empty:
        return None


def _as_error(info: ErrorInfo) -> InferdeckError:
    """The engine thread's error as an exception of its class, for the exit code."""
    import engine.errors

    kind = getattr(engine.errors, info.kind, InferdeckError)
    known = isinstance(kind, type) and issubclass(kind, InferdeckError)
    make: Callable[[str, str], InferdeckError] = kind if known else InferdeckError
    return make(info.cause, info.remedy)
