"""After a crash: what is left of the run before, the report, and the ways on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.link.bridge import EngineState
from app.main.application import Application
from app.paths import data_dir, starter_model
from app.window import crash_report as report
from app.window.crash_report import RunMarker, report_text, reports_dir, step_line, write_report
from engine.snapshot import StepEntry, StepRecord
from tests import ROOT
from tests.app.fakes import FakeEngineThread, Script
from tests.figures import numbers

SECRET = "a private question"

CRASHER = f"""
import os, signal, sys, time
from PySide6.QtCore import QTimer
from app.paths import starter_model
from app.main.application import Application
from app.main.start import make_application
from tests.app.fakes import FakeEngineThread, Script
app = make_application()
application = Application(app, lambda on_event: FakeEngineThread(on_event, Script(replies=10**6)))
application.crash.marker.catch_faults()
application.show()
def loaded(event):
    application.pages.chat_page.send({SECRET!r})
    timer.start(50)
def look():  # until what a report needs is in the marker
    application.crash._keep()
    if "decode + 0 prefill tokens" in application.crash.marker.path.read_text():
        timer.stop()
        print("running", flush=True)
timer = QTimer()
timer.timeout.connect(look)
application.bridge.loaded.connect(loaded)
application.start({{"model": str(starter_model()), "block_size": 32}})
app.exec()
"""


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script()))
    made.show()
    yield made
    made.shutdown()


def crash(number: signal.Signals) -> None:
    """Run the window in a process of its own, and end that by a signal in mid-reply."""
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHER], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "running"
    finally:
        process.send_signal(number)
        process.wait()
        process.stdout.close()


def leave_remains(**data: object) -> Path:
    """A marker of a process that is gone."""
    path = data_dir() / "running-1.json"
    known = {"pid": 1, "process_started": 1.0, "at": 1.7e9, **data}
    path.write_text(json.dumps(known), encoding="utf-8")
    return path


@pytest.fixture
def crashed() -> None:
    """The run before was ended by a fault, in mid-reply."""
    crash(signal.SIGSEGV)


@pytest.mark.slow
def test_a_crash_is_told_with_a_report_and_the_session_comes_back(
    crashed: None, qtbot: QtBot, application: Application
) -> None:
    application.start({})
    notices = application.notices
    qtbot.waitUntil(lambda: "crashed" in notices.keys, timeout=5000)
    notice = notices.notice("crashed")
    assert notice is not None and "Demo model" in notice.cause
    assert application.bridge.state is EngineState.EMPTY  # it may have been the model's doing
    [file] = reports_dir().glob("crash-*.txt")
    text = file.read_text(encoding="utf-8")
    assert file.name in notice.remedy and notice.details == text
    assert "Fatal Python error: Segmentation fault" in text
    assert "decode + 0 prefill tokens" in text and "torch" in text
    assert "block_size" in text and SECRET not in text
    buttons = notices.frame("crashed").buttons
    assert [button.text() for button in buttons] == ["Restore", "Demo model", "Open report"]
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        buttons[0].click()
    assert application.bridge.config is not None and application.bridge.config.block_size == 32
    assert application.pages.chat.current.path()[0].text == SECRET
    application.shutdown()
    assert not list(data_dir().glob("running-*"))


@pytest.mark.slow
def test_a_run_that_ends_well_leaves_nothing(qtbot: QtBot, application: Application) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.start({})
    assert application.crash.marker.path.exists()
    assert application.bridge.config is not None
    assert application.bridge.config.model == str(starter_model())
    application.shutdown()
    application.crash.marker.write({})  # a writer that comes late
    assert not application.crash.marker.path.exists()


@pytest.mark.slow
def test_a_model_given_by_hand_is_opened_even_after_a_crash(
    qtbot: QtBot, application: Application
) -> None:
    path = leave_remains()
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.start({"model": "/models/tiny"})
    notices = application.notices
    qtbot.waitUntil(lambda: "crashed" in notices.keys, timeout=5000)
    assert [b.text() for b in notices.frame("crashed").buttons] == ["Open report"]
    assert not path.exists()


def test_another_window_that_runs_is_no_crash(tmp_path: Path) -> None:
    marker = RunMarker(tmp_path)
    marker.write({"x": 1})
    assert RunMarker(tmp_path).remains() == []
    (tmp_path / "running-7.json").write_text("{damaged")
    assert RunMarker(tmp_path).remains() == []
    assert [file.name for file in tmp_path.iterdir()] == [f"running-{os.getpid()}.json"]
    marker.remove()
    assert not list(tmp_path.iterdir())


def test_a_stopped_engine_leaves_a_report(
    qtbot: QtBot, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.start({})
    chat = application.pages.chat_page
    chat.send("a long story")
    qtbot.waitUntil(lambda: bool(application.recorder.last_steps), timeout=5000)
    chat.new_chat()
    chat.send("crash please")
    notices = application.notices
    qtbot.waitUntil(lambda: "engine" in notices.keys, timeout=5000)
    buttons = lambda: [button.text() for button in notices.frame("engine").buttons]
    qtbot.waitUntil(lambda: buttons() == ["Restart engine", "Open report"], timeout=5000)
    [file] = reports_dir().glob("*.txt")
    text = file.read_text(encoding="utf-8")
    assert "RuntimeError: the script" in text
    assert "Traceback: the script" in text and "max_num_seqs" in text
    assert "step 1: 2 ms" in text and "a long story" not in text
    opened: list[Path] = []
    monkeypatch.setattr("app.main.wiring.open_file", opened.append)
    notices.frame("engine").buttons[1].click()
    assert opened == [file]


def test_reports_are_bounded_and_say_what_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = report_text("it stopped", {}, "")
    assert text.count("unknown") >= 6
    for second in range(report.MOST_REPORTS + 3):
        last = write_report(text, 1.7e9 + second)
    kept = sorted(reports_dir().iterdir())
    assert len(kept) == report.MOST_REPORTS and kept[-1] == last


def test_a_step_in_one_line() -> None:
    entries = (StepEntry("a", "decode", 1), StepEntry("b", "prefill", 96))
    step = StepRecord(812, 0.0, 0.0284, entries, 2, 3, ("c",), model_s=0.0251, sample_s=0.001)
    assert numbers(step_line(step)) == [812, 28.4, 1, 96, 2, 3, 25.1, 1.0, 1]
