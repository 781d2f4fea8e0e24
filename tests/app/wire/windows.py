"""Windows without Qt on a served engine, and a line that a test can cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from app.clients.attached import RemoteEngine
from app.clients.target import Event, LinkChanged, LinkState, Target
from app.server.engine_client import EngineClient
from app.server.options import ServerOptions
from app.server.server import ApiServer
from engine import messages as m
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from tests.app.fakes import FakeEngineThread, Script
from tests.app.server.conftest import wait_until

E = TypeVar("E")
SLOW_BYTES, SLOW_S = 256, 0.05

SLOW = Script(step_s=0.01, replies=120)
ENDLESS = Script(step_s=0.01, replies=100_000)
"""A reply that is still written whenever a busy machine looks."""


class Lab:
    """A scripted engine behind a server."""

    def __init__(self, script: Script | None = None, **options: Any) -> None:
        self.engine = FakeEngineThread(self._on_event, script)
        self.engine_client = EngineClient(self.engine.submit, self.engine.cancel_load)
        options = {"port": 0, "grace_s": 0.2, **options}
        self.server = ApiServer(self.engine_client, ServerOptions(**options))
        self.events: list[m.Event] = []
        self.engine.start()
        self.server.start()

    def load(self, model: str = "/models/tiny") -> None:
        self.engine.submit(m.Load(EngineConfig(model=model)))
        wait_until(lambda: self.engine_client.model is not None)

    def commands(self, kind: type[E]) -> list[E]:
        return [c for c in self.engine.commands if isinstance(c, kind)]

    def close(self) -> None:
        assert self.server.stop()
        assert self.engine.stop()

    def _on_event(self, event: m.Event) -> None:
        self.events.append(event)
        self.engine_client.on_event(event)


class Window:
    """What a window hears, in order."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.events: list[Event] = []
        self.engine = RemoteEngine(self.events.append, Target(url, api_key))
        self.engine.start()

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in list(self.events) if isinstance(e, kind)]

    def wait(self, kind: type[E], count: int = 1) -> E:
        """The `count`-th event of a kind."""
        wait_until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def wait_link(self, state: LinkState) -> LinkChanged:
        wait_until(lambda: any(e.state is state for e in self.of(LinkChanged)))
        return next(e for e in reversed(self.of(LinkChanged)) if e.state is state)

    def wait_now(self, state: LinkState) -> LinkChanged:
        """The line stands so now."""
        wait_until(lambda: [e.state for e in self.of(LinkChanged)][-1:] == [state])
        return self.of(LinkChanged)[-1]

    def ask(self, request_id: str, prompt: Any = "hello", **params: Any) -> None:
        self.engine.submit(m.AddRequest(request_id, prompt, SamplingParams(**params)))

    def outputs(self, request_id: str) -> list[m.OutputEvent]:
        return [e for e in self.of(m.OutputEvent) if e.request_id == request_id]

    def reply(self, request_id: str) -> list[m.OutputEvent]:
        """All of a reply, when it has ended."""
        wait_until(lambda: any(e.finish_reason is not None for e in self.outputs(request_id)))
        return self.outputs(request_id)

    def close(self) -> None:
        assert self.engine.stop()


class Proxy:
    """Hands bytes on between a window and a server, until it is cut."""

    def __init__(self, url: str) -> None:
        self._target = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_open = True
        self._flows = threading.Event()
        self._flows.set()
        self._closing = self._is_slow = False
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def cut(self, *, stays: bool = True) -> None:
        """Every line ends; `stays`: new ones end too, until `mend`."""
        self._is_open = not stays
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def mend(self) -> None:
        self._is_open = True

    def slow(self) -> None:
        """From now on a reply takes a while to come through, however fast the engine is."""
        self._is_slow = True

    def fast(self) -> None:
        self._is_slow = False

    def hold(self) -> None:
        """Nothing comes through, and nobody is told."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._closing = True
        self._flows.set()
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_open:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            self._run(lambda near=near, far=far: self._pump(near, far))  # type: ignore[misc]
            self._run(lambda near=near, far=far: self._pump(far, near))  # type: ignore[misc]

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(SLOW_BYTES if self._is_slow else 65536):
                if self._is_slow:
                    time.sleep(SLOW_S)
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Bench:
    """Makes labs, windows and proxies, and takes them down."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def lab(self, script: Script | None = None, **options: Any) -> Lab:
        made = Lab(script, **options)
        self._made.append(made)
        return made

    def window(self, url: str, key: str | None = None) -> Window:
        made = Window(url, key)
        self._made.append(made)
        return made

    def proxy(self, url: str) -> Proxy:
        made = Proxy(url)
        self._made.append(made)
        return made

    def close(self) -> None:
        for one in reversed(self._made):
            one.close()


def text_of(outputs: list[m.OutputEvent]) -> str:
    return "".join(e.text for e in outputs)
