"""An engine that crashes under `inferdeck serve`: clients are told, it is started anew, and a crash
that comes again at once ends the server."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import serving
from app.paths import starter_model
from app.server.options import ServerOptions
from engine.config import EngineConfig
from engine.errors import ErrorInfo, InferdeckError
from engine.messages import EngineCrashed, Event, Load, Loaded, LoadFailed, Stalled
from tests.app.server.conftest import wait_until

CONFIG = EngineConfig().replace(
    model=str(starter_model()), dtype="float32", num_threads=1,
    kv_cache_memory_bytes=16 * 2**20,
)  # fmt: skip


class Serving:
    """`inferdeck serve` on a thread, over an engine whose next step can be made to fail."""

    def __init__(self) -> None:
        self.crash = threading.Event()
        self.ended_with: BaseException | None = None
        options = ServerOptions(port=0, model_name="starter", grace_s=0.5)
        self.serving = serving.Serving(CONFIG, options, as_json=True)
        thread: Any = self.serving._thread
        self._make = thread._worker._served._factory
        thread._worker._served._factory = self._engine
        self.thread = threading.Thread(target=self._run, name="serve", daemon=True)
        self.thread.start()

    def _engine(self, *args: Any) -> Any:
        engine = self._make(*args)
        step = engine.step

        def step_or_fail() -> Any:
            if self.crash.is_set():
                self.crash.clear()
                raise RuntimeError("a kernel failed")
            return step()

        engine.step = step_or_fail
        return engine

    def _run(self) -> None:
        try:
            self.serving.run()
        except BaseException as error:
            self.ended_with = error

    @property
    def url(self) -> str:
        return self.serving._server.url

    def close(self) -> None:
        """As Ctrl-C would: what it waits for raises."""
        if self.thread.is_alive():
            self.serving._events.put(KeyboardInterrupt)  # type: ignore[arg-type]
        self.serving._server.stop()
        self.serving._thread.stop()
        self.thread.join(60)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    take = serving._next

    def take_or_end(news: Any) -> Any:
        event = take(news)
        if event is KeyboardInterrupt:
            raise KeyboardInterrupt
        return event

    monkeypatch.setattr(serving, "_next", take_or_end)
    made = Serving()
    yield made
    made.close()


def ask(url: str, began: threading.Event | None = None, **fields: Any) -> tuple[int, str]:
    """`began` is set when a line of the answer was read."""
    body = {"prompt": "a", "max_tokens": 1800, "ignore_eos": True, **fields}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            first = response.readline() if began is not None else b""
            if began is not None:
                began.set()
            return response.status, (first + response.read()).decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def in_flight(url: str, count: int, **fields: Any) -> tuple[list[Any], list[threading.Thread]]:
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(url, **fields)), daemon=True)
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    return answers, threads


def test_a_crash_is_told_to_clients_and_the_engine_is_started_anew(
    served: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "STEADY_S", 0.0)
    wait_until(lambda: served.serving._server.is_running and is_healthy(served.url), 60)
    engine_client = served.serving._engine_client
    whole, first = in_flight(served.url, 1)
    began = threading.Event()
    streamed, second = in_flight(served.url, 1, stream=True, began=began)
    wait_until(lambda: engine_client.num_in_flight == 2)
    assert began.wait(60)
    served.crash.set()
    for thread in (*first, *second):
        thread.join(120)
    status, text = whole[0]
    assert status == 500
    error = json.loads(text)["error"]
    assert error["type"] == "server_error" and "a kernel failed" in error["message"]
    status, text = streamed[0]
    assert status == 200 and text.endswith("data: [DONE]\n\n")
    last = json.loads(text.split("data: ")[-2])
    assert "a kernel failed" in last["error"]["message"]
    wait_until(lambda: is_healthy(served.url), 60)
    status, text = ask(served.url, max_tokens=4)
    assert status == 200 and json.loads(text)["usage"]["completion_tokens"] == 4
    assert "a kernel failed" in capsys.readouterr().err


def test_a_crash_that_comes_at_once_ends_the_server(served: Serving) -> None:
    wait_until(lambda: served.serving._server.is_running and is_healthy(served.url), 60)
    answers, threads = in_flight(served.url, 1)
    wait_until(lambda: served.serving._engine_client.num_in_flight == 1)
    served.crash.set()
    served.thread.join(120)
    for thread in threads:
        thread.join(120)
    assert not served.thread.is_alive()
    assert isinstance(served.ended_with, InferdeckError)
    assert "a kernel failed" in served.ended_with.cause
    assert answers[0][0] == 500
    assert not is_healthy(served.url)


def test_a_server_that_ends_by_itself_ends_the_program(served: Serving) -> None:
    wait_until(lambda: served.serving._server.is_running and is_healthy(served.url), 60)
    served.serving._server._server.should_exit = True  # type: ignore[union-attr]
    served.thread.join(60)
    assert isinstance(served.ended_with, InferdeckError)


# What becomes of events, without an engine -------------------------------------------------------

ERROR = ErrorInfo("It failed.", "")
STUCK, CRASHED = EngineCrashed(ERROR, "", is_restarting=True), EngineCrashed(ERROR, "")
FAILED, CANCELLED = LoadFailed(ERROR), LoadFailed(ERROR, cancelled=True)


def loaded(name: str) -> Loaded:
    model: Any = SimpleNamespace(notices=())
    plan: Any = None
    return Loaded(CONFIG.replace(model=name), model, plan)


class Handled:
    """What the server does with events; its engine does nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serving = serving.Serving(CONFIG, ServerOptions(port=0), as_json=True)
        self.loads: list[str] = []
        monkeypatch.setattr(self.serving._thread, "submit", self._submit)
        monkeypatch.setattr(self.serving._engine_client, "on_event", lambda event: None)
        self.serving._load(CONFIG)
        self.take(loaded("a"))
        self.loads.clear()

    def _submit(self, command: Load) -> None:
        self.loads.append(command.config.model)

    def take(self, *events: Event) -> None:
        for event in events:
            self.serving._on_event(event)
            self.serving._handle(self.serving._events.get_nowait())


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Handled:
    return Handled(monkeypatch)


@pytest.mark.parametrize(
    ("events", "loads"),
    [
        ((FAILED, CANCELLED), []),  # of a window's loads
        ((STUCK, CANCELLED), []),
        ((STUCK, CANCELLED, FAILED), []),
        ((STUCK, FAILED), ["a"]),
        ((STUCK, CRASHED), ["a"]),
        ((STUCK, loaded("b"), STUCK, FAILED), ["b"]),
        ((STUCK, FAILED, CANCELLED, FAILED), ["a"]),
        ((STUCK, FAILED, STUCK, FAILED), ["a", "a"]),
    ],
)
def test_a_load_of_a_window_does_not_end_the_server(
    handled: Handled, events: tuple[Event, ...], loads: list[str]
) -> None:
    handled.take(*events)
    assert handled.loads == loads


@pytest.mark.parametrize("events", [(CRASHED,), (STUCK, FAILED, FAILED), (STUCK, FAILED, CRASHED)])
def test_an_engine_that_does_not_come_back_ends_the_server(
    handled: Handled, events: tuple[Event, ...]
) -> None:
    handled.take(*events[:-1])
    with pytest.raises(InferdeckError):
        handled.take(events[-1])


def test_a_hang_is_reported_while_loading_too(
    handled: Handled, capsys: pytest.CaptureFixture[str]
) -> None:
    handled.take(Stalled("step of 9 tokens", 5.0), STUCK, Stalled("loading", 300.0))
    printed = capsys.readouterr().err
    assert "5 s (step of 9 tokens)" in printed and "5 min (loading)" in printed


def test_a_server_that_ends_while_the_engine_restarts_ends_the_program(served: Serving) -> None:
    wait_until(lambda: served.serving._server.is_running and is_healthy(served.url), 60)
    served.serving._events.put(STUCK)
    wait_until(lambda: served.serving._if_load_fails is serving.IfLoadFails.LOAD_LATEST)
    served.serving._server._server.should_exit = True  # type: ignore[union-attr]
    served.thread.join(60)
    assert isinstance(served.ended_with, InferdeckError)
