"""The guards of the root conftest: each lets a clean test pass and fails a careless one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

pytestmark = pytest.mark.slow

CLEAN = """
def test_it(qtbot):
    from PySide6.QtCore import QTimer, qWarning
    from PySide6.QtWidgets import QWidget
    widget = QWidget()
    qtbot.addWidget(widget)
    widget.show()
    timer = QTimer(widget)
    timer.start(1000)
    qWarning("This plugin does not support raise()")
"""
CARELESS = {
    "Qt warning: bad": """
def test_a_warning(qtbot):
    from PySide6.QtCore import qWarning
    qWarning("bad")
""",
    "leaked timer": """
def test_a_timer(qtbot):
    from PySide6.QtCore import QTimer
    kept.append(QTimer())
    kept[-1].start(1000)
""",
    "leaked window": """
def test_a_window(qtbot):
    from PySide6.QtWidgets import QWidget
    kept.append(QWidget())
""",
    "leaked thread": """
def test_a_thread(qtbot):
    threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
""",
}
"""What a careless test is told, and the test."""
BEGINNING = """
import threading, time
import tests.conftest
tests.conftest.ENDING_S = 0.1
kept = []
"""
PATIENT = """
import pytest
from tests.conftest import qtbot
def test_it(qtbot, monkeypatch):
    from PySide6.QtCore import QObject, QTimer, Signal
    class Late(QObject):
        said = Signal()
    late, answers = Late(), []
    QTimer.singleShot(300, late.said.emit)
    with qtbot.waitSignal(late.said, timeout=1):
        pass
    QTimer.singleShot(300, lambda: answers.append(1))
    qtbot.waitUntil(lambda: bool(answers), timeout=1)
    with qtbot.assertNotEmitted(late.said, wait=10):
        pass
    monkeypatch.setattr("tests.patience.PATIENCE_MS", 50)
    with pytest.raises(qtbot.TimeoutError):
        qtbot.waitUntil(lambda: False)
"""
UNINTERRUPTED = """
def test_a_task(qtbot):
    from PySide6.QtCore import QObject
    from app.link.tasks import run_task
    kept.append(QObject())
    run_task(kept[-1], lambda: time.sleep(1.0), kept.append, kept.append)
"""
"""Its thread outlasts ENDING_S."""
KEPT_BY_ITS_OWN_CONNECTION = """
import gc, weakref
from PySide6.QtCore import QObject, Signal
class Part(QObject):
    __module__ = "app.parts"
    said = Signal()
def test_one(qtbot):
    part = Part()
    part.said.connect(lambda: part)
    kept.append(weakref.ref(part))
def test_other(qtbot):
    gc.collect()
    assert kept[0]() is None
"""
WITHOUT_QT = """
import gc, os, sys
COLLECTED_WHILE_IMPORTING = gc.isenabled()
def test_it():
    assert gc.isenabled() and not COLLECTED_WHILE_IMPORTING
    assert "PySide6.QtCore" not in sys.modules
    assert os.environ["INFERDECK_DATA_DIR"] != os.environ["INFERDECK_CONFIG_DIR"]
    assert os.environ["HF_HUB_OFFLINE"] == "1"
"""


def _pytest(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_sample.py"
    file.write_text(code, encoding="utf-8")
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *plugins, str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_a_clean_qt_test_passes_and_a_short_wait_is_a_long_one(tmp_path: Path) -> None:
    pytest.importorskip("pytestqt")
    result = _pytest(tmp_path, CLEAN + PATIENT.replace("test_it", "test_patience"))
    assert result.returncode == 0 and "2 passed" in result.stdout, result.stdout


def test_a_task_may_end_after_its_test(tmp_path: Path) -> None:
    pytest.importorskip("pytestqt")
    result = _pytest(tmp_path, BEGINNING + UNINTERRUPTED)
    assert result.returncode == 0 and "1 passed" in result.stdout, result.stdout
    stuck = BEGINNING + "tests.conftest.TASK_S = 0.2\n" + UNINTERRUPTED
    result = _pytest(tmp_path, stuck)
    assert result.returncode == 1 and "leaked thread: task" in result.stdout, result.stdout


def test_a_part_of_the_application_ends_with_its_test(tmp_path: Path) -> None:
    pytest.importorskip("pytestqt")
    result = _pytest(tmp_path, BEGINNING + KEPT_BY_ITS_OWN_CONNECTION)
    assert result.returncode == 0 and "2 passed" in result.stdout, result.stdout


def test_a_careless_qt_test_fails(tmp_path: Path) -> None:
    """Each is told what is its own: what another left behind was there before."""
    pytest.importorskip("pytestqt")
    result = _pytest(tmp_path, BEGINNING + "".join(CARELESS.values()), "--tb=short")
    assert result.returncode == 1 and "4 errors" in result.stdout, result.stdout
    told = result.stdout.split(" ERROR at teardown of ")[1:]
    assert len(told) == len(CARELESS)
    for part, (complaint, code) in zip(told, CARELESS.items(), strict=True):
        assert part.startswith(code.split("(")[0].removeprefix("\ndef "))
        others = [words for words in CARELESS if words != complaint]
        said = part.split("short test summary")[0]
        assert complaint in said and not any(words in said for words in others)


def test_tests_without_qt_need_none_of_it(tmp_path: Path) -> None:
    result = _pytest(tmp_path, WITHOUT_QT, "-p", "no:pytest-qt")
    assert result.returncode == 0, result.stdout
