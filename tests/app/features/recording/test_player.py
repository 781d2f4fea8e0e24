"""A recording plays, seeks and jumps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.recording import file
from app.features.recording.player import LONGEST_PAUSE_S, playing_times
from app.features.recording.window import ReplayWindow
from app.wire.recording import Frame
from engine import messages as m
from engine.snapshot import Counters, EngineSnapshot, Sample, StepEntry, StepRecord
from tests.app.features.recording.samples import CARD, CONFIG, LOADED
from tests.figures import numbers
from tests.widgets import synthetic


def test_long_pauses_are_shortened() -> None:
    frames = [Frame(at, m.Unloaded()) for at in (100.0, 100.5, 4000.0, 4001.0)]
    assert playing_times(frames) == [0.0, 0.5, 0.5 + LONGEST_PAUSE_S, 1.5 + LONGEST_PAUSE_S]


@pytest.fixture
def window(qtbot: QtBot, qapp: QApplication) -> Iterator[ReplayWindow]:
    frames = [Frame(0.0, LOADED)]
    for at in range(1, 60):
        step = StepRecord(at, at / 4, 0.02, (StepEntry("r0", "decode", 1),), 1, 0)
        snapshot = dataclasses.replace(
            synthetic.snapshot(at / 4, num_running=1), config=CONFIG, steps=(step,),
            counters=Counters(generation_tokens=5 * at), itl=(Sample(at / 4, 0.05),),
        )  # fmt: skip
        frames.append(Frame(at / 4, m.SnapshotEvent(snapshot)))
    made = ReplayWindow(file.Recording(Path("a"), {}, tuple(frames), "It is cut short."))
    qtbot.addWidget(made)
    made.show()
    qtbot.waitUntil(lambda: num_steps(made) == 1 and not made.player.is_jumping, timeout=5000)
    assert made.player.position == made.player.beginning == 0.25
    made.player.seek(made.player.duration)
    qtbot.waitUntil(lambda: not made.player.is_jumping, timeout=5000)
    yield made
    made.close()


def num_steps(window: ReplayWindow) -> int:
    return window.views.timeline.view.history.end


@pytest.mark.slow
def test_gpus_of_a_recording_have_their_charts(window: ReplayWindow) -> None:
    count = len(window.charts.charts)
    seen = dataclasses.replace(synthetic.snapshot(1.0), config=CONFIG, gpus=(CARD,))
    window._on_snapshot(seen)
    assert len(window.charts.charts) == count + 2
    assert window.views.memory._gpus == (CARD,)


def test_seeking_shows_the_state_of_then(qtbot: QtBot, window: ReplayWindow) -> None:
    assert num_steps(window) == 59
    assert "cut short" in window.notices.notice("cut").cause  # type: ignore[union-attr]
    window.player.seek(5.0)
    qtbot.waitUntil(lambda: not window.player.is_jumping, timeout=5000)
    assert num_steps(window) == 20
    window.player.step(1)
    qtbot.waitUntil(lambda: not window.player.is_jumping, timeout=5000)
    assert num_steps(window) == 21 and numbers(window.bar.time.text()) == [0, 5.2, 0, 14.8]
    window.player.seek(99.0)
    qtbot.waitUntil(lambda: not window.player.is_jumping, timeout=5000)
    assert num_steps(window) == 59 and window.player.position == window.player.duration


def test_it_plays_at_the_speed_chosen_and_stops_at_the_end(
    qtbot: QtBot, window: ReplayWindow
) -> None:
    window.bar.speed.setCurrentText("1×")
    window.activateWindow()
    qtbot.keyClick(window.charts, Qt.Key.Key_P, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: window.player.is_playing, timeout=3000)
    assert num_steps(window) < 59
    assert window.bar.play.accessibleName() == "Pause (Ctrl+P)"
    qtbot.waitUntil(lambda: 0 < num_steps(window) < 59, timeout=5000)
    window.bar.toggle()
    assert not window.player.is_playing and window.charts.itl.is_paused
    window.bar.speed.setCurrentText("16×")
    left, began = window.player.duration - window.player.position, time.monotonic()
    window.bar.toggle()
    qtbot.waitUntil(lambda: not window.player.is_playing)
    assert left / 16 * 0.9 < time.monotonic() - began < left  # that would be 1×
    assert num_steps(window) == 59


@pytest.mark.slow
def test_a_long_jump_merges_snapshots_and_loses_no_step(
    qtbot: QtBot, window: ReplayWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.recording.player.MOST_MERGED", 10)
    seen: list[EngineSnapshot] = []
    window.player.snapshot.connect(seen.append)
    window.player.seek(0.0)
    window.player.seek(99.0)
    qtbot.waitUntil(lambda: not window.player.is_jumping, timeout=5000)
    assert len(seen) < 20 and sum(len(snapshot.steps) for snapshot in seen) == 59
    assert num_steps(window) == 59


def test_charts_that_are_drawn_during_a_jump_miss_nothing(
    qtbot: QtBot, window: ReplayWindow
) -> None:
    charts = window.charts
    window.player.snapshot.connect(lambda snapshot: (charts.tokens.redraw(), charts.itl.redraw()))
    for position in (0.0, 99.0):
        window.player.seek(position)
        qtbot.waitUntil(lambda: not window.player.is_jumping, timeout=5000)
    assert charts.itl.now == pytest.approx(59 / 4)  # time stands still
    rates = charts.tokens.data.history["out"]
    assert len(rates.values) >= 12 and rates.values[1:] == pytest.approx(20.0, rel=0.03)
    medians = charts.itl.data.history["p50"]
    assert medians.times[0] < 1.0 and medians.times[-1] > 14.0
    assert np.nanmax(medians.values) == pytest.approx(50.0)
