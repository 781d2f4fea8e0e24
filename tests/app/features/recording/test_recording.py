"""A run of the real engine is recorded, and replayed it looks the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.recording import file, recorder
from app.features.recording.window import ReplayWindow
from app.main.application import Application
from engine import messages as m
from engine.snapshot import EngineSnapshot
from tests.app.features.recording.samples import CONFIG, PEAKS
from tests.app.real_window import started, wait_for_end
from tests.app.window_fixtures import ask
from tests.widgets import synthetic


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    with started(qapp, qtbot) as made:
        yield made


def replay(qtbot: QtBot, application: Application, path: Path) -> ReplayWindow:
    """The recording, which opens at its beginning, at its end."""
    application.recordings.open(path)
    qtbot.waitUntil(lambda: bool(application.recordings.windows), timeout=10_000)
    window = application.recordings.windows[-1]
    qtbot.waitUntil(lambda: window.views.kv_blocks.map.blocks is not None, timeout=5000)
    assert window.player.position == window.player.beginning < window.player.duration
    window.player.seek(window.player.duration)
    qtbot.waitUntil(lambda: not window.player.is_jumping, timeout=10_000)
    return window


def wait_for_rest(
    qtbot: QtBot, application: Application, snapshots: list[EngineSnapshot]
) -> None:
    """Until the last of `snapshots`, of a run with settings that were changed, is on the screen."""
    bridge, strip = application.bridge, application.strip
    qtbot.waitUntil(lambda: bool(snapshots) and snapshots[-1].config == bridge.config)
    qtbot.waitUntil(lambda: not snapshots[-1].requests and strip.state[0] == "Ready")
    qtbot.wait(300)  # one that is on its way
    qtbot.waitUntil(lambda: bridge.dispatcher.is_at_rest)


@pytest.mark.slow
def test_a_recording_of_a_real_run_replays_to_equal_views(
    qtbot: QtBot, application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SEGMENT_FRAMES", 3)  # several segments
    live = application
    shown: list[EngineSnapshot] = []
    application.bridge.snapshot.connect(shown.append)
    application.bridge.peaks_measured.emit(m.PeaksMeasured(PEAKS))
    ask(application, "What is TTFT?", max_tokens=24)
    wait_for_end(qtbot, application)
    application.bridge.reconfigure(max_num_seqs=3)
    qtbot.waitUntil(lambda: live.engine_settings.model.applied.max_num_seqs == 3, timeout=5000)  # type: ignore[union-attr]
    ask(application, "What is TTFT?", max_tokens=24)
    ask(application, "What is the KV cache?", max_tokens=24)
    wait_for_end(qtbot, application)
    chats = application.pages.chat.conversations
    qtbot.waitUntil(lambda: not any(c.open_replies for c in chats), timeout=60_000)
    wait_for_rest(qtbot, application, shown)
    path = tmp_path / "run.inferdeck-flight"
    live.recordings.save(path)
    qtbot.waitUntil(lambda: live.notices.notice("recording") is not None, timeout=10_000)
    assert "What is" not in path.read_text(errors="ignore")

    window = replay(qtbot, application, path)
    assert "Recording" in window.windowTitle() and window.sign.isVisible()
    history, old = window.views.timeline.view.history, live.views.timeline.view.history
    assert history.end == old.end > 10
    assert [history.record(i) for i in range(history.end)] == [
        old.record(i) for i in range(old.end)
    ]
    assert window.views.requests.model.records == live.views.requests.model.records
    blocks, before = window.views.kv_blocks.map.blocks, live.views.kv_blocks.map.blocks
    assert blocks is not None and before is not None
    assert np.array_equal(blocks.owner, before.owner) and np.array_equal(blocks.fill, before.fill)
    for name in ("ttft", "itl", "memory", "requests", "cache"):
        one, other = getattr(window.charts, name).data, getattr(live.charts, name).data
        made_when_drawn = {"p50", "p99", "before", "predicted"}
        for key in set(one.series) - made_when_drawn:
            for part in ("times", "values"):
                drawn, wanted = (getattr(data.history[key], part) for data in (one, other))
                assert np.array_equal(drawn, wanted, equal_nan=True)
                assert len(drawn) or key == "gpu"
    tracker, live_tracker = window.views.bottleneck.model, live.views.bottleneck.model
    assert tracker.breakdown() == live_tracker.breakdown() is not None
    assert window.views.memory.model.figures() == live.views.memory.model.figures()
    assert window.strip.title == live.strip.title and window.strip.state == live.strip.state
    marks = [mark.text for mark in window.charts.itl.marks]
    assert marks == ["Max running requests 16 → 3"]
    assert window.views.requests.abort_button.isHidden()
    assert window.views.bottleneck.measure.isHidden()
    assert window.views.timeline.view.name(history.request_id(0)) == "request 1"
    window.close()
    assert application.recordings.windows == []


def test_what_cannot_be_opened_is_explained_in_the_window(
    qtbot: QtBot, application: Application, tmp_path: Path
) -> None:
    path = tmp_path / "x.inferdeck-flight"
    path.write_bytes(b"something else")
    application.recordings.open(path)
    qtbot.waitUntil(lambda: "recording" in application.notices.keys, timeout=5000)
    notice = application.notices.notice("recording")
    assert notice is not None and file.SUFFIX in notice.remedy


def test_the_recorder_forgets_the_oldest_and_keeps_what_is_in_force(
    qtbot: QtBot, application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SEGMENT_FRAMES", 4)
    monkeypatch.setattr(recorder, "MOST_FRAME_BYTES", 20_000)
    recorder_ = application.recorder
    snapshot = dataclasses.replace(synthetic.snapshot(1.0, num_running=1), config=CONFIG)
    for _ in range(40):
        application.bridge.snapshot.emit(snapshot)
    qtbot.waitUntil(lambda: all(s.packed for s in recorder_._segments), timeout=5000)
    assert recorder_.num_frames < 40
    path = tmp_path / "last.inferdeck-flight"
    num_frames = recorder_.num_frames  # now: another may come while the file is written
    application.recordings.save(path)
    qtbot.waitUntil(lambda: "recording" in application.notices.keys, timeout=5000)
    recording = file.read(path)
    assert isinstance(recording.frames[0].event, m.Loaded)
    assert len(recording.frames) == num_frames + 1
