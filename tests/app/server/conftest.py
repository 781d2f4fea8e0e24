"""One engine and one server for a module's tests, on the starter model in float32: there the
tokens of a request are the same whatever runs beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.paths import starter_model
from app.server.engine_client import EngineClient
from app.server.options import Limits, ServerOptions
from app.server.server import ApiServer
from app.storage.model_sources import STARTER_TITLE
from engine.config import EngineConfig
from engine.engine_thread import EngineThread
from engine.messages import AddRequest, Event, Load, Loaded, OutputEvent, SnapshotEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot

CONFIG = EngineConfig().replace(
    model=str(starter_model()), dtype="float32", num_threads=1, max_num_seqs=64,
    kv_cache_memory_bytes=96 * 2**20, max_num_batched_tokens=512,
)  # fmt: skip
LIMITS = Limits(max_body_bytes=200_000, max_queued=200)
TIGHT = Limits(
    max_body_bytes=LIMITS.max_body_bytes, max_connections=20, header_s=2.0, body_s=2.0, stall_s=2.0
)
"""What ends late or silent clients soon. Others might meet it too on a machine that is busy."""


class Served:
    """A served engine: what it says, what it would answer directly, and whether it is idle."""

    def __init__(self, options: ServerOptions) -> None:
        self._loaded = threading.Event()
        self._direct: dict[str, list[OutputEvent]] = {}
        self._num_ended = 0
        self.last: EngineSnapshot | None = None
        self.thread = EngineThread(self._on_event, snapshot_interval_s=0.05)
        self.engine_client = EngineClient(self.thread.submit)
        self.server = ApiServer(self.engine_client, options)
        self.thread.start()
        self.thread.submit(Load(CONFIG))
        assert self._loaded.wait(120)
        self.server.start()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rsplit(":", 1)[1])

    def direct(self, prompts: list[tuple[int, ...]], params: list[SamplingParams]) -> list[Any]:
        """Token ids of each prompt, from the engine itself."""
        ids = [f"direct-{len(self._direct)}-{i}" for i in range(len(prompts))]
        for request_id, prompt, one in zip(ids, prompts, params, strict=True):
            self._direct[request_id] = []
            self.thread.submit(AddRequest(request_id, prompt, one))
        wait_until(lambda: all(self._direct[i] and self._direct[i][-1].finish_reason for i in ids))
        return [[t for e in self._direct[i] for t in e.token_ids] for i in ids]

    def wait_idle(self) -> EngineSnapshot:
        """The last snapshot, when nothing runs and no block is held. It knows of every end:
        snapshots come now and then, ends at once."""
        wait_until(lambda: self.engine_client.num_in_flight == 0)
        wait_until(lambda: self._knows_all(self.last))
        assert self.last is not None
        assert self.last.blocks.num_used == 0
        return self.last

    def _knows_all(self, snapshot: EngineSnapshot | None) -> bool:
        return (
            snapshot is not None
            and not snapshot.requests
            and sum(snapshot.counters.finished.values()) == self._num_ended
        )

    def close(self) -> None:
        assert self.server.stop()
        assert self.thread.stop()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, OutputEvent) and event.finish_reason is not None:
            self._num_ended += 1  # before the engine client hears of it, and with it the client
        self.engine_client.on_event(event)
        match event:
            case Loaded():
                self._loaded.set()
            case SnapshotEvent():
                self.last = event.snapshot
            case OutputEvent() if event.request_id in self._direct:
                self._direct[event.request_id].append(event)


def wait_until(when: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not when():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served(ServerOptions(port=0, model_name=STARTER_TITLE, limits=LIMITS, grace_s=1.0))
    yield made
    made.close()


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    made = Served(ServerOptions(port=0, model_name=STARTER_TITLE, limits=TIGHT, grace_s=1.0))
    yield made
    made.close()
