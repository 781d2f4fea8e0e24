"""The real window over a scripted engine thread, and words for what tests do with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import Message, State
from app.main.application import Application
from tests.app.fakes import FakeEngineThread, Script
from tests.app.parts import Parts
from widgets.theme.fonts import text_scale
from widgets.theme.restyling import restyling
from widgets.theme.theme import apply_text_size


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def application(
    qapp: QApplication, qtbot: QtBot, script: Script, request: pytest.FixtureRequest
) -> Iterator[Application]:
    """A module that says OPENS gets it with this model open, one that says DOCK with this dock, and
    one may have its own `script`."""
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, script))
    made.show()
    if dock := getattr(request.module, "DOCK", ""):
        made.window.commands.run(f"dock.{dock}")
    try:
        if opens := getattr(request.module, "OPENS", ""):
            open_model(qtbot, made, opens)
        yield made
    finally:
        made.shutdown()


@pytest.fixture(autouse=True)
def usual_text(qapp: QApplication) -> Iterator[None]:
    """Of a module that imports it: the next test has the usual size of text again."""
    yield
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)  # whose text nobody sees
    apply_text_size(qapp, 100)


@contextmanager
def next_run(qapp: QApplication) -> Iterator[Application]:
    """The program, started once more. It is ended whatever a check says of it."""
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script()))
    try:
        yield made
    finally:
        made.shutdown()


def open_model(
    qtbot: QtBot, application: Application | Parts, path: str = "/models/tiny"
) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open(path)


def set_text(qtbot: QtBot, application: Application, percent: int) -> None:
    """Another size of text, in every widget."""
    application.settings.preferences.set("text_size", percent)
    qtbot.waitUntil(lambda: text_scale() == percent / 100 and not restyling().is_busy)


def send(qtbot: QtBot, application: Application, text: str) -> None:
    """Until it is answered: a short reply may be complete before anyone looks."""
    application.pages.chat_page.new_chat()
    application.pages.chat_page.send(text)
    begun = State.STREAMING, State.COMPLETE
    qtbot.waitUntil(
        lambda: application.pages.chat.current.path()[-1].state in begun, timeout=5000
    )


def ask(application: Application, text: str, max_tokens: int = 48) -> None:
    """Send `text` in a new chat, greedily."""
    page, chat = application.pages.chat_page, application.pages.chat
    page.new_chat()
    chat.set_sampling("temperature", 0.0)
    chat.set_sampling("max_tokens", max_tokens)
    page.composer.set_text(text)
    page.composer.send()


def reply(application: Application) -> Message:
    """The last message of the chat that is open."""
    return application.pages.chat.current.path()[-1]


def wait_idle(qtbot: QtBot, application: Application) -> None:
    chat = application.pages.chat
    qtbot.waitUntil(lambda: not any(c.open_replies for c in chat.conversations), timeout=8000)
