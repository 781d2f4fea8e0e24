"""The program ends in mid-reply: closed, killed or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.main.application import Application
from tests import ROOT
from tests.app.real_window import LONG, application, make_next, pace, wait_for_tokens
from tests.app.window_fixtures import ask

__all__ = ["application", "make_next", "pace"]


@pytest.mark.slow
def test_closing_in_mid_reply_is_quick_and_keeps_the_text(
    qtbot: QtBot, application: Application, make_next: Callable[[], Application]
) -> None:
    ask(application, LONG, max_tokens=1000)
    wait_for_tokens(qtbot, application, 5)
    began = time.monotonic()
    application.window.close()
    application.shutdown()
    assert time.monotonic() - began < 60  # a second or two, on a machine that is not busy
    chat = make_next().pages.chat
    chat.open(chat.conversations[0].id)
    question, kept = chat.current.path()
    assert question.text == LONG and len(kept.text.split()) >= 5
    assert kept.state in (State.STOPPED, State.INTERRUPTED)


# In a process of its own -------------------------------------------------------------------------

TALKER = """
import sys, time
from PySide6.QtCore import QTimer
from app.link.bridge import EngineBridge
from app.main.application import Application
from app.main.start import make_application
from engine.messages import OutputEvent
deliver, outputs = EngineBridge.on_event, []
def late(bridge, event):  # some words soon, then so slowly that the reply does not end
    if isinstance(event, OutputEvent):
        outputs.append(event)
        time.sleep(0.03 if len(outputs) < 12 else 1.0)
    deliver(bridge, event)
EngineBridge.on_event = late
app = make_application()
application = Application(app)
application.show()
chat = application.pages.chat
def look():
    stored = chat._store.messages(chat.current.id)
    if stored and stored[-1].role == "assistant" and len(stored[-1].text.split()) > 5:
        timer.stop()
        print("saved", flush=True)
def loaded(event):
    chat.set_sampling("temperature", 0.0)
    application.pages.chat_page.send(LONG)
    timer.start(50)
timer = QTimer()
timer.timeout.connect(look)
application.bridge.loaded.connect(loaded)
application.startup.open_first_model({"num_threads": 1})
app.exec()
""".replace("LONG", repr(LONG))


@pytest.mark.slow
def test_a_killed_process_loses_only_the_tail_of_the_reply(
    make_next: Callable[[], Application],
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TALKER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "saved"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    application = make_next()
    chat = application.pages.chat
    [conversation] = chat.conversations
    chat.open(conversation.id)
    question, kept = conversation.path()
    assert question.text == LONG
    assert kept.state is State.INTERRUPTED and kept.text.startswith("a b c")
    assert application.pages.store.problem is None  # the killed process left no lock


STARTER = """
import sys
from PySide6.QtCore import QTimer
import app.main.start
from app.cli.main import main
class Application(app.main.start.Application):
    def show(self):
        super().show()
        QTimer.singleShot(0, lambda: print("shown", flush=True))
app.main.start.Application = Application
app.main.application.LEAVE_LOAD_S = float(sys.argv[1])
sys.exit(main(["--num-threads", "1"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("leave_s", [20.0, 0.0])  # 0: the engine's thread still imports
def test_control_c_closes_the_window_and_ends_well(leave_s: float, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(leave_s)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == "shown"
        process.send_signal(signal.SIGINT)  # while the engine is being imported and loaded
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()  # where it has not ended by itself
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert list(temporary.glob("inferdeck-*")) == []
