"""Where the engine runs is chosen in the settings: for the next model, or at once by a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.cli.main import build_parser
from app.features.chat.conversation import State
from app.link.child_engine import IsolatedEngine
from app.link.engine_handle import OnEvent, ThreadFactory, engine_thread
from app.main.application import Application
from app.main.engine_status import KEY, factory_of
from app.window.program_settings import PROCESS, THREAD
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import open_model, send

WAIT_MS = 10_000


class FakeProcess(FakeEngineThread):
    """Stands for an engine in a process of its own."""


@pytest.fixture
def application(
    qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Application]:
    script = Script(replies=2000, step_s=0.005)

    def in_thread(on_event: OnEvent) -> FakeEngineThread:
        return FakeEngineThread(on_event, script)

    def in_process(on_event: OnEvent) -> FakeEngineThread:
        return FakeProcess(on_event, script)

    def scripted(place: str) -> ThreadFactory:
        return in_process if place == PROCESS else in_thread

    for module in ("app.main.engine_status", "app.main.application"):
        monkeypatch.setattr(f"{module}.factory_of", scripted)
    made = Application(qapp)
    made.show()
    yield made
    made.shutdown()


def is_isolated(application: Application) -> bool:
    return isinstance(application.bridge.engine, FakeProcess)


def choose(application: Application, place: str) -> None:
    application.settings.preferences.set("engine_place", place)


def test_there_is_an_engine_for_every_choice() -> None:
    assert factory_of(THREAD) is engine_thread and factory_of(PROCESS) is IsolatedEngine


@pytest.mark.slow
def test_before_a_model_is_open_it_is_for_the_first(qtbot: QtBot, application: Application) -> None:
    choose(application, PROCESS)
    assert application.notices.notice(KEY) is None
    open_model(qtbot, application)
    assert is_isolated(application)


@pytest.mark.slow
def test_it_is_for_the_next_model_and_said_so(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    choose(application, PROCESS)
    notice = application.notices.notice(KEY)
    assert notice is not None and len(notice.actions) == 1
    beside = application.bridge.beside()
    assert beside._handle.make_own is application.bridge._handle.make_own  # of the kind that runs
    beside.shutdown()
    beside.deleteLater()
    assert not is_isolated(application)
    choose(application, THREAD)
    assert application.notices.notice(KEY) is None
    choose(application, PROCESS)
    before = application.bridge.engine
    open_model(qtbot, application, "/models/other")
    assert is_isolated(application) and application.notices.notice(KEY) is None
    assert before is not None
    qtbot.waitUntil(lambda: not before.is_alive(), timeout=WAIT_MS)


def test_a_restart_moves_the_model_that_is_open(qtbot: QtBot, application: Application) -> None:
    open_model(qtbot, application)
    send(qtbot, application, "a long one")
    chat = application.pages.chat
    qtbot.waitUntil(lambda: chat.current.path()[-1].text != "", timeout=WAIT_MS)
    choose(application, PROCESS)
    notice = application.notices.notice(KEY)
    assert notice is not None
    [(_, restart)] = notice.actions
    with qtbot.waitSignal(application.bridge.loaded, timeout=WAIT_MS):
        restart()
    assert is_isolated(application)
    assert application.bridge.config is not None
    assert application.bridge.config.model == "/models/tiny"
    cut = chat.current.path()[-1]
    assert cut.text and cut.state is State.ERROR and cut.error is not None
    assert "abort" in cut.error.cause


def test_the_command_line_can_ask_for_it_for_one_run() -> None:
    parser: Callable[..., object] = build_parser().parse_args
    assert vars(parser(["--isolated"]))["isolated"] is True
    assert vars(parser([]))["isolated"] is False
