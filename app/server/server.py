"""ApiServer: starts and stops the HTTP server on its own thread."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from app.server.api import Api
from app.server.attach_hub import Hub
from app.server.call_log import CallLog
from app.server.connection import LimitedProtocol, LimitedSocket, with_limits
from app.server.engine_client import EngineClient
from app.server.options import ServerOptions
from app.server.tokens import TokenizerWorker
from engine.errors import InferdeckError

log = logging.getLogger(__name__)

BACKLOG = 512
FRAME_ROOM = 64 * 1024
"""Size of a window's frame beyond its largest text."""
SEND_BUFFER = 128 * 1024
END_S = 2.0
"""Time for streams to end after their requests were aborted."""


class ServerStartError(InferdeckError):
    """The server cannot listen on its address."""


class PortInUseError(ServerStartError):
    """Another program uses the port."""


class ApiServer:
    """Serves `engine` on its own thread.

    server = ApiServer(engine, ServerOptions(port=0))
    server.bind()        raises ServerStartError: a port in use; may be left to `start`
    server.start()       returns when it listens
    server.stop()        running replies may finish for `grace_s`, then they are aborted
    """

    def __init__(
        self, engine: EngineClient, options: ServerOptions, calls: CallLog | None = None
    ) -> None:
        self.options = options
        self._calls = calls
        self._engine = engine
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._hub: Hub | None = None
        self._listens = threading.Event()
        self._port = options.port

    @property
    def url(self) -> str:
        host = self.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def num_connections(self) -> int:
        """Open client connections. May be read by any thread."""
        server = self._server
        return len(server.server_state.connections) if server is not None else 0

    @property
    def num_windows(self) -> int:
        """Attached windows. May be read by any thread."""
        hub = self._hub
        return hub.num_windows if hub is not None else 0

    def bind(self) -> None:
        """Bind the port. Raises ServerStartError if that fails."""
        if self._socket is None:
            self._socket = bound_socket(self.options.host, self.options.port)
            self._port = self._socket.getsockname()[1]

    def start(self) -> None:
        if self.is_running:
            return
        self.bind()
        self._listens.clear()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()
        self._listens.wait(10)
        if not self.is_running:
            raise ServerStartError("The server failed to start.", "See the log.")
        log.info("listening on %s", self.url)
        if self.options.is_open:
            log.warning(
                "no authentication on %s: anyone can use it (--allow-unauthenticated)", self.url
            )

    def hurry(self) -> None:
        """Abort running replies, so that `stop` returns soon."""
        self._post(self._engine.abort_all)

    def stop(self) -> bool:
        """Accept no more calls, let running ones finish for `grace_s`, abort the rest. True if the
        thread ended. A second call, from any thread, aborts at once."""
        server, thread = self._server, self._thread
        if server is not None and thread is not None:
            self._post(self._begin_to_stop, server)
            thread.join(self.options.grace_s + END_S + 5.0)
            if thread.is_alive():
                return False
            self._loop = self._server = self._thread = self._hub = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return True

    def _post(self, work: Callable[..., None], *args: Any) -> None:
        """Call `work` on the loop, if it runs."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has already ended
                loop.call_soon_threadsafe(work, *args)

    # -- the server's thread ----------------------------------------------------------------

    def _begin_to_stop(self, server: uvicorn.Server) -> None:
        if self._engine.is_closing:
            self._engine.abort_all()
            return
        self._engine.is_closing = True
        server.should_exit = True
        asyncio.get_running_loop().call_later(self.options.grace_s, self._engine.abort_all)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException:  # a panic or sys.exit of a library; its owner looks at is_running
            log.exception("the server failed")
        finally:
            self._listens.set()

    async def _serve(self) -> None:
        assert self._socket is not None
        self._loop = asyncio.get_running_loop()
        tokens = TokenizerWorker()
        self._engine.attach(self._loop)
        hub = self._hub = Hub(self._engine, self.options)
        server = self._server = uvicorn.Server(self._config(tokens, hub))
        signal = asyncio.create_task(self._signal_start(server))
        try:
            await server.serve(sockets=[self._socket])
        finally:
            signal.cancel()
            hub.close()
            self._engine.detach()
            tokens.close()

    async def _signal_start(self, server: uvicorn.Server) -> None:
        while not server.started:
            await asyncio.sleep(0.005)
        self._listens.set()

    def _config(self, tokens: TokenizerWorker, hub: Hub) -> uvicorn.Config:
        options = self.options
        return uvicorn.Config(
            Api(self._engine, tokens, options, int(time.time()), hub, self._calls).app(),
            http=with_limits(LimitedProtocol, options.limits),
            ws=with_limits(LimitedSocket, options.limits),
            ws_max_size=options.limits.max_body_bytes + FRAME_ROOM,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # the attach protocol has its own heartbeats
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",  # errors are in our log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(options.limits.idle_s),
            timeout_graceful_shutdown=int(options.grace_s + END_S),
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of `host`. Raises ServerStartError with the remedy."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ServerStartError(
            f"{host!r} is not an address of this machine: {error}.",
            "Set a local address with --host.",
        ) from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows it would let two servers share a port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: a stalled reader holds this much, not megabytes.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from None
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> ServerStartError:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"Port {port} on {host} is in use.",
            "Stop the program using it, or choose another --port (0: any free port).",
        )
    if error.errno == errno.EACCES:
        return ServerStartError(
            f"Port {port} needs administrator rights.", "Set --port to 1024 or higher."
        )
    return ServerStartError(
        f"Cannot listen on {host}, port {port}: {error.strerror or error}.",
        "Set a local address with --host.",
    )
