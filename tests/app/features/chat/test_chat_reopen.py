"""A killed process loses nothing but the unfinished tail of the reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from tests.app.chat_fixtures import chat_in, kill_when_it_says

SCRIPT = """
import sys
from pathlib import Path
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from tests.app.chat_fixtures import make_chat

app = QApplication([])
chat = make_chat(Path(sys.argv[1]))
chat.ask("First question", "First answer")
chat.send("Second question")
chat.engine.say("The beginning of ")
chat.engine.say("an answer")

def check():
    chat.store.flush()
    if chat.stored()[-1].text == "The beginning of an answer":
        chat.engine.say(" and its tail")
        print("saved", flush=True)
        timer.stop()

timer = QTimer()
timer.timeout.connect(check)
timer.start(50)
app.exec()
"""


@pytest.mark.slow
def test_reopening_after_a_kill(qtbot: QtBot, tmp_path: Path) -> None:
    kill_when_it_says("saved", SCRIPT, tmp_path)
    with chat_in(tmp_path) as chat:
        assert chat.titles == ["First question"]
        chat.controller.open(chat.page.list.records[0].id)
        assert chat.texts == [
            "First question", "First answer", "Second question", "The beginning of an answer",
        ]  # fmt: skip
        assert chat.states == ["complete", "complete", "complete", "interrupted"]
        view = chat.page.transcript.views[-1]
        assert view.record.status.startswith("interrupted") and not view.record.is_open
        view._regenerate.click()
        chat.settle()
        assert chat.engine.prompt()[-1] == ("user", "Second question")
        chat.engine.finish("whole")
        chat.settle()
        assert chat.states[-1] == "complete" and view is not chat.page.transcript.views[-1]
