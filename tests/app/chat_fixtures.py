"""A chat page on a fake engine and a store of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from pytestqt.qtbot import QtBot

from app.features.chat.controller import ChatController
from app.features.chat.page import ChatPage
from app.storage import ChatStore, StoredMessage
from tests import ROOT
from tests.app.fake_engine import FakeEngine


@dataclass
class Chat:
    """What a test drives, and words for what it looks at."""

    engine: FakeEngine
    store: ChatStore
    controller: ChatController
    page: ChatPage

    def settle(self) -> None:
        """Everything queued is written, and its consequences are on the screen."""
        for _ in range(3):
            self.store.flush()
            QCoreApplication.processEvents()

    def send(self, text: str) -> str:
        """Write and send; the request's id."""
        self.page.composer.set_text(text)
        self.page.composer.send()
        self.settle()
        return self.engine.last

    def ask(self, text: str, answer: str) -> str:
        """A whole exchange."""
        request = self.send(text)
        self.engine.say(answer)
        self.engine.finish()
        self.settle()
        return request

    @property
    def texts(self) -> list[str]:
        """What the views show, from top to bottom."""
        views = self.page.transcript.views
        for view in views:
            view.text.render_now()  # what waits for its turn
        return [view.text.toPlainText() for view in views]

    @property
    def states(self) -> list[str]:
        return [message.state.value for message in self.controller.current.path()]

    @property
    def titles(self) -> list[str]:
        return [record.title for record in self.page.list.records]

    def stored(self) -> list[StoredMessage]:
        return self.store.messages(self.controller.current.id)


def make_chat(folder: Path, state: str = "ready") -> Chat:
    engine = FakeEngine(state)
    store = ChatStore(folder / "chats.sqlite3")
    controller = ChatController(engine, store)
    page = ChatPage(controller)
    page.resize(1200, 640)
    page.show()
    return Chat(engine, store, controller, page)


def close_chat(chat: Chat) -> None:
    chat.page.toast.dismiss()
    chat.page.draft.keep()
    chat.controller.close()
    chat.store.close()
    chat.page.close()
    for thing in (chat.page, chat.controller, chat.engine):
        thing.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QCoreApplication.processEvents()


@contextmanager
def chat_in(folder: Path, state: str = "ready") -> Iterator[Chat]:
    """The chat of a folder; it is closed whatever a check says of it."""
    made = make_chat(folder, state)
    try:
        yield made
    finally:
        close_chat(made)


@pytest.fixture
def chat(qtbot: QtBot, tmp_path: Path) -> Iterator[Chat]:
    with chat_in(tmp_path) as made:
        yield made


def kill_when_it_says(word: str, script: str, folder: Path) -> None:
    """Run a program on the chats of `folder`, and kill it at its first line, which is `word`."""
    root = ROOT
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == f"{word}\n"
    finally:
        child.kill()
        child.wait(60)
        child.stdout.close()
