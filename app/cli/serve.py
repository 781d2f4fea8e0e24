"""`inferdeck serve`: an OpenAI-compatible server without a window."""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import values
from app.cli.options import add_engine_options, add_options, engine_config
from app.cli.session import StatusLine, prepare_libraries
from app.server.options import KEY_VARIABLE, MIB, Limits, ServerOptions
from app.storage.model_sources import STARTER_TITLE, is_starter, model_title
from engine.config import EngineConfig
from engine.errors import ConfigError, ErrorInfo, InferdeckError
from engine.units import bytes_text, rough_duration

# What follows needs numpy or the server's libraries, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.messages import Event, Loaded

NAME = "serve"
HELP = "Run an OpenAI-compatible server."
DESCRIPTION = "Serve a model over an OpenAI-compatible HTTP API. Press Ctrl-C to stop."
EPILOG = """\
examples:
  inferdeck serve
      serve the demo model on http://127.0.0.1:8000/v1
  inferdeck serve --model ~/models/Qwen3-0.6B --port 9000 --max-num-seqs 32
  INFERDECK_API_KEY=... inferdeck serve --host 0.0.0.0 --model DIR
      accept connections from other machines; clients must send the key
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{"messages": [{"role": "user", "content": "What is TTFT?"}], "stream": true}'

Attach a window with `inferdeck --attach http://host:8000`. Attached windows show the engine and may
load the served model and models in --model-dir.

Routes: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health,
/version, /metrics (Prometheus, vLLM metric names) and /openapi.json."""

SNAPSHOT_INTERVAL_S = 0.25
SWITCH_S = 0.0002
"""Interpreter switch interval: the default of 5 ms would delay every token."""

LOOK_S = 0.5
STEADY_S = 60.0
"""An engine that crashes again within this time is not restarted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser.add_argument_group("server"),
        ("--host H", values.host,
         "Address to listen on. Default: 127.0.0.1 (this machine only).", "127.0.0.1"),
        ("--port N", values.port, "Port to listen on. 0: any free port. Default: 8000.", 8000),
        ("--api-key K", values.name, "API key that clients must send. "
         f"Use {KEY_VARIABLE} to hide it from process lists."),
        ("--allow-unauthenticated", None,
         "Accept connections from other machines without an API key."),
        ("--served-model-name NAME", values.name,
         "Model name in the API. Default: the folder name."),
        ("--cors-origin ORIGIN", values.name,
         "Allowed CORS origin, such as http://localhost:3000. Repeatable.", []),
        ("--model-dir DIR", values.folder,
         "Folder of models that attached windows may load. Repeatable.", []),
        ("--no-control", None, "Attached windows may only view and chat."),
        ("--shutdown-timeout S", values.seconds,
         "Seconds to wait for running requests after Ctrl-C. Default: 10.", 10.0),
        ("--json", None, "Print only a JSON object when the server is ready."),
    )  # fmt: skip
    limits = Limits()
    add_options(
        parser.add_argument_group("limits"),
        ("--max-queued-requests N", values.count,
         f"Maximum waiting requests; excess requests get HTTP 429. Default: {limits.max_queued}.",
         limits.max_queued),
        ("--max-connections N", values.positive,
         f"Maximum open connections; excess ones get HTTP 503. Default: {limits.max_connections}.",
         limits.max_connections),
        ("--max-body-bytes SIZE", values.size,
         f"Maximum request body size. Default: {limits.max_body_bytes // MIB}MiB.",
         limits.max_body_bytes),
        ("--max-output-tokens N", values.positive,
         "Maximum tokens per reply. Default: the context length."),
    )  # fmt: skip
    add_engine_options(parser)


def server_options(args: argparse.Namespace, model_name: str = "") -> ServerOptions:
    """`model_name`: the default name. Raises ConfigError for an open server without a key, or an
    invalid limit."""
    return ServerOptions(
        host=args.host,
        port=args.port,
        api_key=args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE) or None,
        allow_unauthenticated=args.allow_unauthenticated,
        cors_origins=tuple(args.cors_origin),
        model_name=args.served_model_name or model_name,
        limits=Limits(
            max_body_bytes=args.max_body_bytes,
            max_connections=args.max_connections,
            max_queued=args.max_queued_requests,
            max_output_tokens=args.max_output_tokens,
        ),
        grace_s=args.shutdown_timeout,
        models=offered_models(args.model_dir),
        allows_control=not args.no_control,
    )


def offered_models(folders: Iterable[str]) -> tuple[str, ...]:
    """The model folders inside `folders`, or `folders` themselves if they are models. Raises
    ConfigError for a folder without a model."""
    found: list[str] = []
    for name in folders:
        folder = Path(name).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder.", "Choose a folder with models.")
        inside = [p for p in (folder, *sorted(folder.iterdir())) if (p / "config.json").is_file()]
        if not inside:
            raise ConfigError(
                f"{folder} contains no model.",
                "A model folder contains config.json, as downloaded from Hugging Face.",
            )
        found += map(str, inside)
    return tuple(dict.fromkeys(found))


def run(args: argparse.Namespace) -> int:
    config = engine_config(args)
    options = server_options(args, STARTER_TITLE if is_starter(config.model) else "")
    prepare_libraries()
    sys.setswitchinterval(SWITCH_S)
    with _log_on_stderr(), _terminated_as_by_ctrl_c():
        return _Serving(config, options, as_json=args.json).run()


class _IfLoadFails(Enum):
    """What the failure of the current load means for the server."""

    END = auto()  # a load of ours: there is nothing to serve
    LOAD_LATEST = auto()  # a window's load, which replaces a stuck engine
    SERVE_ON = auto()  # any other load of a window


class _Serving:
    """The engine's thread, the server, and the handling of load and crash events."""

    def __init__(self, config: EngineConfig, options: ServerOptions, *, as_json: bool) -> None:
        from app.server.engine_client import EngineClient
        from app.server.server import ApiServer
        from engine.engine_thread import EngineThread

        self._config = self._latest = config
        self._as_json = as_json
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._if_load_fails = _IfLoadFails.END
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

        self._if_load_fails = _IfLoadFails.END
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
                self._if_load_fails = _IfLoadFails.LOAD_LATEST
            case LoadProgress() | Loaded() | LoadFailed() if not self._awaits_load:
                pass
            case LoadProgress(stage, done, total):
                self._status.loading(stage, done, total)
            case Loaded():
                self._status.clear()
                self._if_load_fails, self._loaded_at = _IfLoadFails.SERVE_ON, time.monotonic()
                for notice in event.model.notices:
                    print(f"note: {notice}", file=sys.stderr)
                if event.without_draft is not None:
                    cause = event.without_draft.cause
                    print(f"note: speculative decoding is off: {cause}", file=sys.stderr)
                return event
            case LoadFailed(cancelled=True):  # by a window
                self._status.clear()
                _say(f"{event.error.cause} No model is loaded.")
                self._if_load_fails = _IfLoadFails.SERVE_ON
            case LoadFailed() | EngineCrashed():
                self._status.clear()
                is_early = not self._awaits_load and time.monotonic() - self._loaded_at < STEADY_S
                if is_early or self._if_load_fails is _IfLoadFails.END:
                    raise _as_error(event.error)
                _say(f"{event.error.cause} Restarting the engine.")
                self._load(self._latest)
        return None

    @property
    def _awaits_load(self) -> bool:
        return self._if_load_fails is not _IfLoadFails.SERVE_ON

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


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Warnings on stderr while serving."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    with ExitStack() as stack:
        for logger in map(logging.getLogger, ("app", "engine")):
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        yield


@contextmanager
def _terminated_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM (service managers) ends the server as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
