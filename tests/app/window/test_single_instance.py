"""One window per user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtNetwork import QLocalSocket
from pytestqt.qtbot import QtBot

from app.window.single_instance import NotAnsweringError, SingleInstance, hand_over, socket_name
from tests import ROOT

WITHOUT_MODEL = """
import sys
import app.window.single_instance
import app.main.start
from app.cli.main import main
app.main.start.Application.start = lambda self, given: print("started", flush=True)
hand_over = app.window.single_instance.hand_over
app.window.single_instance.hand_over = lambda name, values: hand_over(name, values, 60_000)
sys.exit(main([]))
"""


@pytest.fixture
def first(qtbot: QtBot, tmp_path: Path) -> Iterator[SingleInstance]:
    made = SingleInstance(tmp_path)
    assert made.claim({})
    yield made
    made.release()


def test_the_first_takes_what_a_second_was_asked(
    qtbot: QtBot, first: SingleInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    taken: list[bool] = []
    values = {"model": "models/mine", "max_num_seqs": 4}
    name = socket_name(tmp_path)
    second = threading.Thread(target=lambda: taken.append(hand_over(name, values, 60_000)))
    with qtbot.waitSignal(first.asked, timeout=5000) as asked:
        second.start()
    second.join(60)
    assert taken == [True]
    # the first one was started elsewhere: a relative path would mean another folder there
    assert asked.args == [{"model": str(tmp_path / "models" / "mine"), "max_num_seqs": 4}]


def test_the_place_is_free_again_afterwards(qtbot: QtBot, tmp_path: Path) -> None:
    for _ in range(2):
        one = SingleInstance(tmp_path)
        assert one.claim({})
        one.release()


def test_another_data_folder_is_another_place(
    qtbot: QtBot, first: SingleInstance, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = SingleInstance(folder)
    assert other.claim({})
    other.release()


def test_one_that_does_not_answer_is_named(
    first: SingleInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.window.single_instance.hand_over", lambda name, values: False)
    with pytest.raises(NotAnsweringError) as said:
        SingleInstance(tmp_path).claim({})
    assert f"process {os.getpid()}" in said.value.cause and said.value.remedy


def test_a_folder_that_cannot_be_written_does_not_keep_the_window_from_opening(
    qtbot: QtBot, tmp_path: Path
) -> None:
    nowhere = SingleInstance(tmp_path / "not there")
    assert nowhere.claim({})


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n", b"x" * 70_000])
def test_what_is_no_message_is_not_listened_to(
    qtbot: QtBot, first: SingleInstance, tmp_path: Path, line: bytes
) -> None:
    heard: list[object] = []
    first.asked.connect(heard.append)
    stranger = QLocalSocket()
    with qtbot.waitSignal(stranger.disconnected, timeout=5000):
        stranger.connectToServer(socket_name(tmp_path))
        stranger.write(line)
    assert heard == []


@pytest.mark.slow
def test_a_second_start_of_the_program_ends_at_once(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "INFERDECK_DATA_DIR": str(tmp_path), "INFERDECK_CONFIG_DIR": str(tmp_path),
        "QT_QPA_PLATFORM": "offscreen",
    }  # fmt: skip
    command = [sys.executable, "-c", WITHOUT_MODEL]
    running = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None and running.stdout.readline() == "started\n"
        second = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
        assert second.returncode == 0 and second.stdout and "started" not in second.stdout
        assert running.poll() is None
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(300)
        if running.stdout is not None:
            running.stdout.close()
    assert "app.main.startup: " in (tmp_path / "inferdeck.log").read_text()
