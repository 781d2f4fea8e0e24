"""Marks of a recording, by mouse and keys, and the list of saved recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QTabBar
from pytestqt.qtbot import QtBot

from app.features.recording import file
from app.features.recording.marks import EventMark, MarkOf, event_marks, mark_after, mark_before
from app.features.recording.player import playing_times, request_names
from app.features.recording.shelf import new_path, stored
from app.features.recording.window import ReplayWindow
from app.main.application import Application
from app.paths import recordings_dir
from app.wire.recording import Frame
from engine import messages as m
from engine.config import Change, EngineConfig
from engine.snapshot import StepEntry, StepRecord
from tests.app.window_fixtures import application, ask, script, wait_idle
from tests.figures import numbers
from tests.widgets import synthetic

__all__ = ["application", "script"]  # fixtures

OPENS = "/models/tiny"
CONFIG = EngineConfig(model="/m", max_num_seqs=16)
FEWER = dataclasses.replace(CONFIG, max_num_seqs=3)


def snapshot(at: float, config: EngineConfig, running: int) -> Frame:
    made = dataclasses.replace(synthetic.snapshot(at, num_running=running), config=config)
    return Frame(at, m.SnapshotEvent(made))


def frames() -> list[Frame]:
    return [
        Frame(0.0, m.Loaded(CONFIG, synthetic.MODEL, synthetic.PLAN)),
        snapshot(0.5, CONFIG, 1), snapshot(1.0, CONFIG, 3),
        Frame(1.5, m.Reconfigured(FEWER, Change.LIVE, 0.0)),
        snapshot(2.0, FEWER, 2), Frame(2.5, m.Unloaded()),
    ]  # fmt: skip


def test_models_settings_and_requests_have_marks() -> None:
    made = frames()
    marks = event_marks(made, playing_times(made), {"r0": "request 1"})
    assert [(mark.at, mark.of) for mark in marks] == [
        (0.0, MarkOf.MODEL), (0.5, MarkOf.REQUEST), (1.0, MarkOf.REQUEST), (1.0, MarkOf.REQUEST),
        (1.5, MarkOf.SETTING), (2.5, MarkOf.MODEL),
    ]  # fmt: skip
    assert synthetic.MODEL.name in marks[0].text and numbers(marks[4].text) == [16, 3]


def test_a_request_that_ends_between_snapshots_has_a_mark() -> None:
    idle = dataclasses.replace(synthetic.snapshot(1.0), config=CONFIG)
    step = StepRecord(1, 0.9, 0.01, (StepEntry("short", "prefill", 4),), 1, 0)
    made = [Frame(1.0, m.SnapshotEvent(dataclasses.replace(idle, steps=(step,))))]
    names = request_names(made)
    assert [mark.of for mark in event_marks(made, [0.0], names)] == [MarkOf.REQUEST]
    assert list(names) == ["short"]


@given(st.lists(st.floats(0, 100)), st.floats(0, 100))
def test_the_next_mark_is_beyond_and_the_one_before_is_not(at: list[float], here: float) -> None:
    marks = [EventMark(x, MarkOf.REQUEST, "") for x in sorted(at)]
    after, before = mark_after(marks, here), mark_before(marks, here)
    assert after is None or after.at > here
    assert before is None or before.at < here
    assert after is not None or all(x <= here + 0.1 for x in at)
    assert before is not None or all(x >= here - 0.1 for x in at)


@pytest.fixture
def window(qtbot: QtBot, qapp: QApplication) -> Iterator[ReplayWindow]:
    made = ReplayWindow(file.Recording(Path("a"), {}, tuple(frames())))
    qtbot.addWidget(made)
    made.show()
    qtbot.waitUntil(lambda: made.player.position == 0.5 and not made.player.is_jumping)
    yield made
    made.close()


@pytest.mark.slow
def test_tabs_have_whole_titles_in_a_narrow_window(qtbot: QtBot, window: ReplayWindow) -> None:
    window.resize(800, 600)
    docks = window.views.docks

    def whole() -> bool:
        return any(
            bar.count() == len(docks) and all(
                bar.tabRect(tab).width() > bar.fontMetrics().horizontalAdvance(bar.tabText(tab))
                for tab in range(bar.count())
            ) and bar.elideMode() is Qt.TextElideMode.ElideNone
            for bar in window.area.findChildren(QTabBar)
        )  # fmt: skip

    qtbot.waitUntil(whole)


def test_keys_and_clicks_jump_to_marks(qtbot: QtBot, window: ReplayWindow) -> None:
    player, strip = window.player, window.bar.marks
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    window.activateWindow()
    window.bar.slider.setFocus()
    for key, at in ((Qt.Key.Key_Right, 1.0), (Qt.Key.Key_Right, 1.5), (Qt.Key.Key_Left, 1.0)):
        qtbot.keyClick(window.bar.slider, key, both)
        qtbot.waitUntil(lambda at=at: player.position == at and not player.is_jumping)  # type: ignore[misc]
    where = QPoint(round(strip.x_of(1.5)) + 2, 6)
    assert [mark.of for mark in strip.near(where.x())] == [MarkOf.SETTING]
    qtbot.mouseClick(strip, Qt.MouseButton.LeftButton, pos=where)
    qtbot.waitUntil(lambda: player.position == 1.5 and not player.is_jumping)
    qtbot.mouseClick(strip, Qt.MouseButton.LeftButton, pos=QPoint(round(strip.x_of(1.75)), 6))
    assert player.position == 1.5  # no mark is near
    assert not strip.grab().isNull()


# The list -------------------------------------------------------------------------------------


def test_recordings_are_saved_listed_opened_and_deleted(
    qtbot: QtBot, application: Application
) -> None:
    ask(application, "hello")
    wait_idle(qtbot, application)
    application.window.show_page_named("Inspect")
    assert application.pages.inspect.show_view("recordings")
    panel = application.recordings_panel
    assert panel.save.isEnabled() and numbers(panel.note.text())
    qtbot.mouseClick(panel.save, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: panel.table.rowCount() == 1, timeout=5000)
    (one,) = stored(recordings_dir())
    assert one.seconds is not None and one.seconds > 0 and one.size > 0 and one.model
    panel.table.selectRow(0)
    panel.table.setFocus()
    qtbot.keyClick(panel.table, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(application.recordings.windows) == 1, timeout=5000)
    application.recordings.windows[0].close()
    qtbot.mouseClick(panel.delete, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: panel.table.rowCount() == 0, timeout=5000)
    assert not one.path.exists()
    panel.toast.act()
    qtbot.waitUntil(lambda: panel.table.rowCount() == 1, timeout=5000)
    assert one.path.exists()
    panel.table.selectRow(0)
    qtbot.mouseClick(panel.delete, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: panel.table.rowCount() == 0, timeout=5000)
    panel.toast.dismiss()
    qtbot.waitUntil(lambda: not list(recordings_dir().iterdir()), timeout=5000)


def test_the_list_leaves_out_what_it_cannot_read(tmp_path: Path) -> None:
    from datetime import datetime

    now = datetime(2026, 1, 2, 3, 4)
    first = new_path(tmp_path, now)
    file.write(first, {"created": "2026-01-02T03:04:00", "seconds": "long"}, [])
    second = new_path(tmp_path, now)
    file.write(second, {"created": "2026-01-02T03:05:00", "seconds": 61.5, "model": "m"}, [])
    (tmp_path / f"broken{file.SUFFIX}").write_bytes(b"\0" * 40)
    (tmp_path / f"folder{file.SUFFIX}").mkdir()
    assert first != second
    found = [(one.path, one.seconds, one.model) for one in stored(tmp_path)]
    assert found == [(second, 61.5, "m"), (first, None, "")]


@pytest.mark.slow
def test_the_last_seconds_alone_are_saved(
    qtbot: QtBot, application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.recording.recorder.SEGMENT_FRAMES", 2)
    for text in ("one", "two", "three"):
        ask(application, text)
        wait_idle(qtbot, application)
    saved: list[float] = []
    recorder, done = application.recorder, lambda seconds, size: saved.append(seconds)
    whole = recorder.seconds
    for name, seconds in (("a", None), ("b", whole / 4)):
        recorder.save(tmp_path / name, done, lambda error: None, seconds)
        qtbot.waitUntil(lambda: bool(saved), timeout=5000)
        assert saved == [whole] if seconds is None else 0 <= saved[0] < whole
        saved.clear()
    lengths = [len(file.read(tmp_path / name).frames) for name in "ab"]
    assert lengths[1] < lengths[0]
    assert isinstance(file.read(tmp_path / "b").frames[0].event, m.Loaded)
