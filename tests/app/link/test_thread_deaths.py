"""A thread that dies leaves nobody waiting: of tasks, clients, the server, the engine's process."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import QObject

from app.clients.loop_thread import LoopThread
from app.clients.target import Event
from app.link import child_process
from app.link.child_engine import IsolatedEngine
from app.link.child_process import ChildProcess
from app.link.tasks import run_task
from app.server.api import _safe
from app.server.engine_client import EngineClient
from app.server.errors import ApiError
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.hardware import nvml
from engine.snapshot import FinishReason
from tests.panics import DEATHS

WAIT_S = 20.0


def until(when: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not when():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def dies(error: str) -> Callable[..., Any]:
    def faulty(*_: Any, **__: Any) -> Any:
        raise DEATHS[error]()

    return faulty


@pytest.mark.parametrize("error", DEATHS)
def test_a_task(error: str, qtbot: Any) -> None:
    failures: list[ErrorInfo] = []
    owner = QObject()
    run_task(owner, dies(error), lambda result: None, failures.append)
    qtbot.waitUntil(lambda: bool(failures))
    assert failures[0].cause and failures[0].remedy


class Client(LoopThread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__("client")
        self.work = work
        self.failures: list[BaseException] = []

    async def _live(self) -> None:
        self.work()

    def _leave(self) -> None: ...

    def _on_failed(self, error: BaseException) -> None:
        self.failures.append(error)


@pytest.mark.parametrize("error", DEATHS)
def test_a_client(error: str) -> None:
    client = Client(dies(error))
    client.start()
    client.join(WAIT_S)
    assert [type(one) for one in client.failures] == [type(DEATHS[error]())]


@pytest.mark.parametrize("error", ["exception", "panic", "memory", "unsayable"])
def test_a_request_of_the_server(error: str) -> None:
    async def handle(request: Any) -> Any:
        raise DEATHS[error]()

    answer = asyncio.run(_safe(handle)(None))  # type: ignore[arg-type]
    assert answer.status_code == 500 and json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize("error", ["exception", "panic", "memory", "unsayable"])
@pytest.mark.parametrize("fails_at", ["listener", "state"])
def test_an_event_that_the_server_cannot_handle_fails_its_call_alone(
    error: str, fails_at: str
) -> None:
    async def live() -> None:
        commands: list[m.Command] = []
        client = EngineClient(commands.append)
        client.attach(asyncio.get_running_loop())
        client.serving = lambda: None  # type: ignore[assignment, method-assign, return-value]
        client.room = lambda max_queued: 2  # type: ignore[method-assign]
        calls = [client.send([m.AddRequest(name, "x")], 9) for name in ("bad", "good")]

        def hear(event: Any) -> None:
            if event.request_id == "bad":
                raise DEATHS[error]()

        if fails_at == "listener":
            client.listener = hear
        else:
            client.attach_state.note = hear  # type: ignore[method-assign]
        for name in ("bad", "good"):
            client.on_event(
                m.OutputEvent(name, "x", (1,), 0.0, 1, 1, 0, finish_reason=FinishReason.STOP)
            )
        with pytest.raises(ApiError):
            await asyncio.wait_for(calls[0].take_whole(), WAIT_S)
        pieces = await asyncio.wait_for(calls[1].take_whole(), WAIT_S)
        assert [piece.text for piece in pieces] == ["x"]
        assert client.num_in_flight == 0

    asyncio.run(live())


def test_output_that_cannot_be_logged_does_not_block_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "parse_record", dies("exception"))
    lines = "import sys; [print('x' * 1000, file=sys.stderr) for n in range(500)]; print('done')"
    child = ChildProcess(command=(sys.executable, "-c", lines))
    assert child.ends_within(WAIT_S), "its pipe is full"
    assert child.end(WAIT_S) == 0 and child.wait_ready(WAIT_S) is None


@pytest.mark.parametrize("error", DEATHS)
@pytest.mark.parametrize("point", ["secrets.token_urlsafe", "app.link.child_engine.ChildProcess"])
def test_the_thread_of_the_engine_process(
    point: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    engine = IsolatedEngine(events.append)
    engine.start()
    try:
        for attempt in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(point, dies(error))
                engine.submit(m.Load(EngineConfig(model="/models/tiny")))
                engine.submit(m.CountTokens(str(attempt), "x"))
                until(lambda: m.TokensCounted(str(attempt), None) in events)  # noqa: B023
            crashes = [event for event in events if isinstance(event, m.EngineCrashed)]
            assert len(crashes) == attempt and crashes[-1].error.remedy
    finally:
        assert engine.stop(WAIT_S)


@pytest.mark.parametrize("error", DEATHS)
def test_the_watch_of_the_gpus(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        handles = (1,)
        was_closed = False

        def figures(self) -> tuple[()]:
            raise DEATHS[error]()

        def close(self) -> None:
            Driver.was_closed = True

    monkeypatch.setattr(nvml, "Driver", Driver)
    watch = nvml.GpuWatch(lambda at, gpus: None)
    watch.start()
    watch.stop()
    assert Driver.was_closed and watch.latest == ()
    assert "gpu-monitor" not in [thread.name for thread in threading.enumerate()]
