"""The real window with the real engine and the starter model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.link.bridge import EngineBridge
from app.main.application import Application
from engine import messages
from tests.app.window_fixtures import reply

LONG = "Write the alphabet three times."
LOAD_MS, REPLY_MS = 120_000, 120_000


@dataclass
class Pace:
    """What every token takes."""

    seconds: float


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.015) -> Pace:
    """Make every token take `seconds`, and the more so while the window is busy with those before,
    so that "in mid-reply" is that on any machine. For windows that are made after this."""
    deliver = EngineBridge.on_event
    pace = Pace(seconds)

    def late(bridge: EngineBridge, event: messages.Event) -> None:
        if isinstance(event, messages.OutputEvent):
            time.sleep(pace.seconds)
            until = time.monotonic() + 2.0
            inbox = bridge.dispatcher.inbox
            while len(inbox) > 8 and not bridge._closed and time.monotonic() < until:
                time.sleep(0.005)
        deliver(bridge, event)

    monkeypatch.setattr(EngineBridge, "on_event", late)
    return pace


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    return slow_down(monkeypatch)


@contextmanager
def started(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    """The program with the demo model, on one thread."""
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=LOAD_MS):
        made.startup.open_first_model({"num_threads": 1})
    yield made
    made.shutdown()


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot, pace: Pace) -> Iterator[Application]:
    with started(qapp, qtbot) as made:
        yield made


@pytest.fixture
def make_next(qapp: QApplication, qtbot: QtBot) -> Iterator[Callable[[], Application]]:
    """Starts the program once more, over what a run before has left."""
    made: list[Application] = []

    def make() -> Application:
        made.append(Application(qapp))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def wait_for_tokens(qtbot: QtBot, application: Application, count: int) -> None:
    qtbot.waitUntil(lambda: len(reply(application).text.split()) >= count, timeout=REPLY_MS)


def wait_for_end(qtbot: QtBot, application: Application) -> str:
    qtbot.waitUntil(lambda: not application.pages.chat.is_busy, timeout=REPLY_MS)
    return reply(application).text
