"""`inferdeck serve`: the engine behind an OpenAI-compatible server, without a window."""

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.options import add_engine_options, engine_config
from app.cli.session import StatusLine, prepare_libraries
from app.server.options import KEY_VARIABLE, MIB, Limits, ServerOptions
from app.storage.model_sources import is_starter
from app.units import parse_bytes
from engine.config import EngineConfig
from engine.errors import ConfigError, ErrorInfo, InferdeckError

# What follows needs numpy or the server's libraries, which `--help` need not wait for.
if TYPE_CHECKING:
    from engine.messages import Event, Loaded

NAME = "serve"
HELP = "an OpenAI-compatible server"
DESCRIPTION = "Serve a model to OpenAI's clients over HTTP, until Ctrl-C."
EPILOG = """\
examples:
  inferdeck serve
      the starter model on http://127.0.0.1:8000/v1
  inferdeck serve --model ~/models/Qwen3-0.6B --port 9000 --max-num-seqs 32
  INFERDECK_API_KEY=... inferdeck serve --host 0.0.0.0 --model DIR
      for other machines too; clients send the key
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{"messages": [{"role": "user", "content": "What is TTFT?"}], "stream": true}'

A window elsewhere attaches with `inferdeck --attach http://host:8000`, sees every view of the
engine, and opens the served model and those of --model-dir.

Routes: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health,
/version, /metrics (Prometheus, under vLLM's names) and /openapi.json."""

STARTER_NAME = "starter"  # the name of its folder says nothing
SNAPSHOT_INTERVAL_S = 0.25
SWITCH_S = 0.0002
"""The engine's thread gives the interpreter to the server's so often: the usual 5 ms stand between
a token and its client."""

STEADY_S = 60.0
"""An engine that crashes again before it has served so long is not started another time."""

_DEFAULTS = Limits()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("server")
    where.add_argument(
        "--host", metavar="H", default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine alone)",
    )  # fmt: skip
    where.add_argument(
        "--port", metavar="N", type=int, default=8000, help="0 takes any free one (default: 8000)"
    )
    where.add_argument(
        "--api-key", metavar="K",
        help=f"wanted of every client; others can see it among the processes, so better set "
        f"{KEY_VARIABLE}",
    )  # fmt: skip
    where.add_argument(
        "--allow-unauthenticated", action="store_true",
        help="listen beyond this machine without an API key",
    )  # fmt: skip
    where.add_argument(
        "--served-model-name", metavar="NAME", default="",
        help="what clients call the model (default: the name of its folder)",
    )  # fmt: skip
    where.add_argument(
        "--cors-origin", metavar="ORIGIN", action="append", default=[],
        help="web pages of this origin may call, such as http://localhost:3000; may be repeated",
    )  # fmt: skip
    where.add_argument(
        "--model-dir", metavar="DIR", action="append", default=[],
        help="a window that attaches may open the models in this folder; may be repeated",
    )  # fmt: skip
    where.add_argument(
        "--no-control", action="store_true",
        help="windows that attach may look and ask, not open models or change settings",
    )  # fmt: skip
    where.add_argument(
        "--shutdown-timeout", metavar="S", type=float, default=10.0,
        help="how long running replies may go on after Ctrl-C, in seconds (default: 10)",
    )  # fmt: skip
    where.add_argument(
        "--json", action="store_true",
        help="print one JSON object when it listens, and nothing else",
    )  # fmt: skip
    limits = parser.add_argument_group("limits")
    for flag, default, text in (
        ("--max-queued-requests", _DEFAULTS.max_queued, "requests that may wait; more get 429"),
        ("--max-connections", _DEFAULTS.max_connections, "open connections; more get 503"),
    ):
        limits.add_argument(
            flag, metavar="N", type=int, default=default, help=f"{text} (default: {default})"
        )
    limits.add_argument(
        "--max-body-bytes", metavar="SIZE", type=_size, default=_DEFAULTS.max_body_bytes,
        help=f"of a request's body (default: {_DEFAULTS.max_body_bytes // MIB}MiB)",
    )  # fmt: skip
    limits.add_argument(
        "--max-output-tokens",
        metavar="N",
        type=int,
        help="most tokens of one reply (default: as many as the context holds)",
    )
    add_engine_options(parser)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def server_options(args: argparse.Namespace, model_name: str = "") -> ServerOptions:
    """`model_name`: where none was given. Raises ConfigError where the server would be open to
    others, or a limit is impossible."""
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
    """The model folders in `folders`, or these themselves where they are models. Raises
    ConfigError for one that holds none."""
    found: list[str] = []
    for name in folders:
        folder = Path(name).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder.", "Name one that holds model folders.")
        inside = [p for p in (folder, *sorted(folder.iterdir())) if (p / "config.json").is_file()]
        if not inside:
            raise ConfigError(
                f"There is no model in {folder}.",
                "A model is a folder with a config.json, as it is downloaded from a hub.",
            )
        found += map(str, inside)
    return tuple(dict.fromkeys(found))


def run(args: argparse.Namespace) -> int:
    config = engine_config(args)
    options = server_options(args, STARTER_NAME if is_starter(config.model) else "")
    prepare_libraries()
    sys.setswitchinterval(SWITCH_S)
    with _log_on_stderr(), _terminated_as_by_ctrl_c():
        return _Serving(config, options, as_json=args.json).run()


class _Serving:
    """The engine's thread, the server, and what to do with the engine's news."""

    def __init__(self, config: EngineConfig, options: ServerOptions, *, as_json: bool) -> None:
        from app.server.gate import EngineGate
        from app.server.server import ApiServer
        from engine.engine_thread import EngineThread

        self._config = self._latest = config
        self._as_json = as_json
        self._news: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._status = StatusLine()
        self._thread = EngineThread(self._on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_S)
        self._gate = EngineGate(self._thread.submit, self._thread.cancel_load)
        self._server = ApiServer(self._gate, options)

    def run(self) -> int:
        from engine.messages import Load

        try:
            self._server.bind()  # a port in use is found out before the model is read
            self._thread.start()
            self._thread.submit(Load(self._config))
            loaded = self._until_loaded()
            self._server.start()
            self._say_where(loaded)
            self._watch()
        except KeyboardInterrupt:
            return self._stop()
        finally:
            self._status.clear()
            self._server.stop()
            self._thread.stop()
        return 1

    def _on_event(self, event: Event) -> None:
        """On the engine's thread."""
        from engine.messages import EngineCrashed, Loaded, LoadFailed, LoadProgress, Reconfigured

        self._gate.on_event(event)
        if isinstance(event, (Loaded, Reconfigured)):
            self._latest = event.config  # a window elsewhere may have changed it
        if isinstance(event, (EngineCrashed, Loaded, LoadFailed, LoadProgress)):
            self._news.put(event)

    def _until_loaded(self) -> Loaded:
        """Raises InferdeckError where the model cannot be loaded."""
        from engine.messages import EngineCrashed, Loaded, LoadFailed, LoadProgress

        while True:
            event = _next(self._news)
            match event:
                case LoadProgress(stage, done, total):
                    self._status.loading(stage, done, total)
                case Loaded():
                    self._status.clear()
                    for notice in event.model.notices:
                        print(f"note: {notice}", file=sys.stderr)
                    if event.without_draft is not None:
                        print(f"note: no drafts: {event.without_draft.cause}", file=sys.stderr)
                    return event
                case LoadFailed() | EngineCrashed():
                    self._status.clear()
                    raise _as_error(event.error)

    def _watch(self) -> None:
        """Serve. An engine that crashes is started anew, unless it does so again at once."""
        from engine.messages import EngineCrashed, Load

        since = time.monotonic()
        while True:
            event = _next(self._news)
            if isinstance(event, EngineCrashed):
                if time.monotonic() - since < STEADY_S:
                    raise _as_error(event.error)
                print(f"inferdeck: {event.error.cause} Starting it anew.", file=sys.stderr)
                self._thread.submit(Load(self._latest))
                self._until_loaded()
                since = time.monotonic()

    def _say_where(self, loaded: Loaded) -> None:
        name = self._server.options.model_name or loaded.model.name
        if self._as_json:
            ready = {"url": self._server.url, "model": name, "pid": os.getpid()}
            print(json.dumps(ready), flush=True)
        else:
            print(f"Serving {name} on {self._server.url}/v1 (Ctrl-C ends it)", flush=True)

    def _stop(self) -> int:
        """0 where everything ended within its time. Ctrl-C again does not wait for replies."""
        if not self._server.is_running:
            return 130  # it was not serving yet
        print("inferdeck: stopping; Ctrl-C again aborts running replies", file=sys.stderr)
        try:
            return 0 if self._server.stop() else 1
        except KeyboardInterrupt:
            self._server.stop()
            return 130


def _next(news: queue.SimpleQueue[Event]) -> Event:
    while True:
        try:
            # With a time limit: without one Windows would not see Ctrl-C.
            return news.get(timeout=0.5)
        except queue.Empty:
            pass


def _as_error(info: ErrorInfo) -> InferdeckError:
    """The error that the engine's thread reported, with the exit code of its class."""
    import engine.errors

    kind = getattr(engine.errors, info.kind, InferdeckError)
    known = isinstance(kind, type) and issubclass(kind, InferdeckError)
    make: Callable[[str, str], InferdeckError] = kind if known else InferdeckError
    return make(info.cause, info.remedy)


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Warnings of the program's parts, while it serves."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("app", "engine")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


@contextmanager
def _terminated_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, as service managers send it, ends the server as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
