"""A scripted engine, served in a thread: what the window connects to."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import keyring
import keyring.backend
import pytest

from app.server.engine_client import EngineClient
from app.server.options import ServerOptions
from app.server.server import ApiServer
from engine.config import EngineConfig
from engine.messages import Event, Load, Loaded
from tests.app.fakes import FakeEngineThread, Script

KEY = "sk-elsewhere"


class MemoryKeyring(keyring.backend.KeyringBackend):
    """Keeps what it is given as long as the test lasts."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise keyring.errors.PasswordDeleteError("there is none")


@pytest.fixture
def ring() -> Iterator[MemoryKeyring]:
    before = keyring.get_keyring()
    made = MemoryKeyring()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


class Elsewhere:
    """An engine of ours behind a server, with a model that is open."""

    def __init__(self, model: str = "/models/far", port: int = 0) -> None:
        self.script = Script(step_s=0.005)
        self._loaded = threading.Event()
        self.engine = FakeEngineThread(self._on_event, self.script)
        self.engine_client = EngineClient(self.engine.submit)
        options = ServerOptions(port=port, api_key=KEY, grace_s=0.2)
        self.server = ApiServer(self.engine_client, options)
        self.engine.start()
        self.engine.submit(Load(EngineConfig(model=model)))
        assert self._loaded.wait(60)
        self.server.start()

    @property
    def url(self) -> str:
        return self.server.url

    def close(self) -> None:
        self.server.stop()
        self.engine.stop()

    def _on_event(self, event: Event) -> None:
        self.engine_client.on_event(event)
        if isinstance(event, Loaded):
            self._loaded.set()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.close()
