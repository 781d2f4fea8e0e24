"""The real window on an engine in a process of its own: nothing in it knows the difference, until
that process is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.features.models.session import ENGINE
from app.link.bridge import EngineBridge, EngineState
from app.link.child_engine import IsolatedEngine
from app.link.engine_handle import OnEvent, ThreadFactory
from app.main.application import Application
from app.paths import starter_model
from engine import EngineConfig, LLMEngine, SamplingParams, messages
from tests.app.window_fixtures import ask, reply

LOAD_MS = REPLY_MS = 120_000
WAIT_MS = 20_000
QUESTION = "What is the KV cache?"
SETTINGS = {"num_threads": 1, "dtype": "float32"}


class Shared:
    """One process for several windows: starting one takes seconds."""

    def __init__(self) -> None:
        self.listener: OnEvent = lambda event: None
        self.engine = IsolatedEngine(lambda event: self.listener(event))
        self.engine.start()
        self._load_once()

    def _load_once(self) -> None:
        """Its threads are there, and it has imported what takes time, before the first test. Every
        test finds it without a model."""
        events: list[object] = []
        self.listener = events.append
        config = EngineConfig(model=str(starter_model()), **SETTINGS)  # type: ignore[arg-type]
        self.engine.submit(messages.Load(config))
        self.engine.submit(messages.Unload())
        deadline = time.monotonic() + LOAD_MS / 1000
        while not any(isinstance(event, messages.Unloaded) for event in list(events)):
            assert time.monotonic() < deadline, events
            time.sleep(0.01)

    def lend(self, on_event: OnEvent) -> Borrowed:
        return Borrowed(self, on_event)


class Borrowed:
    """As if the process were the window's own; it is left without a model."""

    def __init__(self, shared: Shared, on_event: OnEvent) -> None:
        self._shared, self._on_event = shared, on_event
        self._is_left = False
        self.submit, self.cancel_load = shared.engine.submit, shared.engine.cancel_load

    def start(self) -> None:
        self._shared.listener = self._on_event

    def is_alive(self) -> bool:
        return not self._is_left

    def stop(self, timeout_s: float = 10.0) -> bool:
        left: list[object] = []
        self._shared.listener = left.append
        self.submit(messages.Unload())
        deadline = time.monotonic() + timeout_s
        while messages.Unloaded() not in left and time.monotonic() < deadline:
            time.sleep(0.01)
        self._is_left = True
        return True


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERDECK_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        made = Shared()
    yield made
    assert made.engine.stop(60.0)


OpenWindow = Callable[[ThreadFactory], Application]


@pytest.fixture
def open_window(qapp: QApplication, qtbot: QtBot) -> Iterator[OpenWindow]:
    made: list[Application] = []

    def one(make: ThreadFactory) -> Application:
        made.append(Application(qapp, make))
        made[-1].show()
        return made[-1]

    yield one
    for application in made:
        application.shutdown()


def load(qtbot: QtBot, application: Application) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=LOAD_MS):
        application.startup.open_first_model(SETTINGS)


def answer(qtbot: QtBot, application: Application) -> str:
    qtbot.waitUntil(
        lambda: reply(application).text != "" and not application.pages.chat.is_busy,
        timeout=REPLY_MS,
    )
    return reply(application).text


def direct(text: str, max_tokens: int = 24) -> tuple[str, int]:
    """What an engine in this very process answers, and how many tokens that is."""
    engine = LLMEngine(EngineConfig(model=str(starter_model()), **SETTINGS))  # type: ignore[arg-type]
    try:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        [output] = engine.generate([[{"role": "user", "content": text}]], params)
        return output.text, len(output.token_ids)
    finally:
        engine.shutdown()


@pytest.mark.slow
def test_chat_views_and_settings_work_as_with_the_thread(
    qtbot: QtBot, shared: Shared, open_window: OpenWindow
) -> None:
    application = open_window(shared.lend)
    load(qtbot, application)
    bridge = application.bridge
    assert bridge.state is EngineState.READY and not bridge.is_remote
    ask(application, QUESTION, 24)
    text, count = direct(QUESTION)
    assert answer(qtbot, application) == text
    figures = reply(application).figures
    assert figures is not None and figures.num_tokens == count
    qtbot.waitUntil(lambda: application.recorder.last_steps != [], timeout=WAIT_MS)
    with qtbot.waitSignal(bridge.reconfigured, timeout=WAIT_MS):
        application.engine_settings.choose("max_num_seqs", 3)
    assert bridge.config is not None and bridge.config.max_num_seqs == 3
    with qtbot.waitSignal(bridge.reconfigured, timeout=LOAD_MS):
        bridge.reconfigure(block_size=32)
    with qtbot.waitSignal(bridge.block_inspected, timeout=WAIT_MS) as inspected:
        bridge.inspect_block(0)
    assert inspected.args is not None and inspected.args[0].details is not None
    with qtbot.waitSignal(bridge.load_failed, timeout=WAIT_MS):
        application.session.open("/no/such/folder")
    assert bridge.state is EngineState.READY  # the model before serves on
    ask(application, QUESTION, 24)
    assert answer(qtbot, application) == text


@pytest.mark.slow
def test_a_load_can_be_cancelled(qtbot: QtBot, shared: Shared, open_window: OpenWindow) -> None:
    application = open_window(shared.lend)
    with qtbot.waitSignal(application.bridge.load_failed, timeout=LOAD_MS) as failed:
        application.startup.open_first_model(SETTINGS)
        application.bridge.cancel_load()
    assert failed.args is not None and failed.args[0].cancelled
    assert application.bridge.state is EngineState.EMPTY


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_engine_takes_no_chat_with_it(
    qtbot: QtBot,
    open_window: OpenWindow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deliver = EngineBridge.on_event
    written: list[int] = []
    to_hold: list[int] = []

    def hold(bridge: EngineBridge, event: messages.Event) -> None:
        if isinstance(event, messages.OutputEvent) and to_hold:
            written.extend(event.token_ids)
            if len(written) >= 12:  # "in mid-reply" is that on any machine
                os.kill(to_hold.pop(), signal.SIGSTOP)
        deliver(bridge, event)

    monkeypatch.setattr(EngineBridge, "on_event", hold)
    application = open_window(IsolatedEngine)
    load(qtbot, application)
    engine, chat = application.bridge.engine, application.pages.chat
    assert isinstance(engine, IsolatedEngine) and engine.pid is not None
    ask(application, QUESTION, 24)
    first = answer(qtbot, application)
    to_hold.append(engine.pid)
    ask(application, "Write the alphabet three times.", max_tokens=400)
    qtbot.waitUntil(lambda: not to_hold and bool(reply(application).text), timeout=REPLY_MS)
    seen = reply(application).text
    os.kill(engine.pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: application.bridge.state is EngineState.CRASHED, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: reply(application).state is State.ERROR, timeout=WAIT_MS)
    cut = reply(application)
    assert cut.text.startswith(seen) and cut.error is not None
    assert "SIGKILL" in cut.error.cause and "smaller model" in cut.error.remedy
    notice = application.notices.notice(ENGINE)
    assert notice is not None and "out of memory" in notice.cause
    with qtbot.waitSignal(application.bridge.loaded, timeout=LOAD_MS):
        next(do for text, do in notice.actions if text == "Restart engine")()
    ask(application, QUESTION, 24)
    assert answer(qtbot, application) == first
    assert [c.path()[-1].state for c in chat.conversations].count(State.ERROR) == 1
    pid = engine.pid
    assert pid is not None
    application.shutdown()
    assert not psutil.pid_exists(pid)


def test_a_window_that_closes_while_the_process_starts_leaves_none(
    qtbot: QtBot, open_window: OpenWindow
) -> None:
    application = open_window(IsolatedEngine)
    application.startup.open_first_model(SETTINGS)
    engine = application.bridge.engine
    assert isinstance(engine, IsolatedEngine)
    qtbot.waitUntil(lambda: engine.pid is not None, timeout=WAIT_MS)
    pid = engine.pid
    assert pid is not None
    application.shutdown()
    assert not psutil.pid_exists(pid)


def test_a_process_that_cannot_start_is_said_with_what_it_printed(
    qtbot: QtBot, open_window: OpenWindow
) -> None:
    broken = sys.executable, "-c", "import torch_of_another_machine"
    application = open_window(partial(IsolatedEngine, command=broken))
    application.startup.open_first_model(SETTINGS)
    qtbot.waitUntil(lambda: application.bridge.state is EngineState.CRASHED, timeout=WAIT_MS)
    notice = application.notices.notice(ENGINE)
    assert notice is not None and "torch_of_another_machine" in notice.cause
    assert "Traceback" in notice.details
