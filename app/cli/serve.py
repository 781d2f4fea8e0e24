"""`inferdeck serve`: an OpenAI-compatible server without a window."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from app.cli import values
from app.cli.options import add_engine_options, add_options, engine_config
from app.cli.serving import Serving
from app.cli.session import prepare_libraries
from app.server.options import KEY_VARIABLE, MIB, Limits, ServerOptions
from app.storage.model_sources import STARTER_TITLE, is_starter
from engine.errors import ConfigError

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

SWITCH_S = 0.0002
"""Interpreter switch interval: the default of 5 ms would delay every token."""


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
        return Serving(config, options, as_json=args.json).run()


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
