"""The flight recorder: what is written is read again, and replayed it looks the same."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.recording import file, recorder
from app.features.recording.file import RecordingError
from app.features.recording.player import LONGEST_PAUSE_S, playing_times
from app.features.recording.window import ReplayWindow
from app.main.application import Application
from app.wire.recording import Frame, decode, encode
from engine import messages as m
from engine.config import Change, EngineConfig
from engine.errors import ErrorInfo
from engine.hardware.peaks import Peaks
from engine.snapshot import (
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    FinishReason,
    GpuFigures,
    GpuProcess,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    StepEntry,
    StepRecord,
    ThreadFigures,
    ThreadsOf,
    TokenEvent,
)
from tests.app.main.test_window_engine import LOAD_MS, ask, wait_for_end
from tests.figures import numbers
from tests.widgets import synthetic

CARD = GpuFigures("A card", 8, 3, 1, (GpuProcess("Xorg", 7, 2),), power_w=90.0)
THREADS = ThreadFigures(4, 2, 3, 1.25, (ThreadsOf(1, 1, 2), ThreadsOf(4, 7, 3)))
CONFIG = EngineConfig(model="/m", max_num_seqs=4)
PEAKS = Peaks(40e9, 800e9, "float32", 2, "a machine", 1.7e9)
LOADED = m.Loaded(CONFIG, synthetic.MODEL, synthetic.PLAN)


# The lines ------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> list[Frame]:
    """Snapshots in which blocks change owners and requests get tokens."""
    count, frames = draw(st.integers(1, 8)), []
    tokens: dict[str, tuple[TokenEvent, ...]] = {}
    owner = np.full(12, -1, np.int32)
    for at in range(count):
        ids = draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True))
        requests = []
        for name in ids:
            new = draw(st.integers(0, 3))
            tokens[name] = tokens.get(name, ()) + tuple(TokenEvent(at + 0.1, 1) for _ in range(new))
            times = RequestTimes(0.5, draw(st.none() | st.floats(0, 9)), tokens[name])
            requests.append(
                RequestSnapshot(
                    name, draw(st.sampled_from(list(RequestState))), 9, 1, 2, new, 3, 0, times
                )
            )
        owner = owner.copy()
        owner[draw(st.integers(0, 11))] = draw(st.integers(-2, 2))
        owner = np.minimum(owner, len(ids) - 1).astype(np.int32)  # no owner that is not there
        blocks = BlockSnapshot(
            16, tuple(ids), owner, (owner >= 0).astype(np.int32),
            np.full(12, draw(st.integers(0, 16)), np.int32), owner == -2,
            tuple((0, 1) for _ in ids),
        )  # fmt: skip
        entry = StepEntry("a", "decode", 1, 0, 0, 0, 77, 1)
        step = StepRecord(at, at + 0.3, 0.02, (entry,), 1, 0, ("b",), ("c",), 0.1, 0.2, 0.3, 0.4,
                          held_back=("d",), kv_usage=0.25, num_threads=2,
                          exchange_s=0.125)  # fmt: skip
        snapshot = dataclasses.replace(
            synthetic.snapshot(at / 3), config=CONFIG, requests=tuple(requests), blocks=blocks,
            steps=(step,), ttft=(Sample(at, 0.1),), itl=(Sample(at, 0.2), Sample(at, 0.3)),
            gpus=draw(st.sampled_from([(), (CARD,), (CARD, CARD)])),
            threads=draw(st.sampled_from([None, THREADS, THREADS._replace(others=None)])),
        )  # fmt: skip
        frames.append(Frame(at / 7, m.SnapshotEvent(snapshot)))
    return frames


def assert_same(left: EngineSnapshot, right: EngineSnapshot) -> None:
    for name in ("owner", "ref_count", "fill", "hashed"):
        one, other = getattr(left.blocks, name), getattr(right.blocks, name)
        assert one.dtype == other.dtype and np.array_equal(one, other)
    assert (left.blocks.owners, left.blocks.tables) == (right.blocks.owners, right.blocks.tables)
    assert dataclasses.replace(left, blocks=right.blocks) == right


@given(runs())
def test_what_is_encoded_is_decoded(frames: list[Frame]) -> None:
    again = list(decode(encode(frames)))
    assert [frame.time for frame in again] == [frame.time for frame in frames]
    for before, after in zip(frames, again, strict=True):
        assert isinstance(before.event, m.SnapshotEvent)
        assert isinstance(after.event, m.SnapshotEvent)
        assert_same(before.event.snapshot, after.event.snapshot)


def test_a_recording_from_before_threads_were_told_is_read() -> None:
    snapshot = dataclasses.replace(synthetic.snapshot(1.0), threads=THREADS)
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(snapshot))]))
    del line["threads"]
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent) and frame.event.snapshot.threads is None


def test_a_recording_from_before_gpus_were_watched_is_read() -> None:
    first, second = (synthetic.snapshot(at) for at in (1.0, 2.0))
    data = encode([Frame(s.time, m.SnapshotEvent(s)) for s in (first, second)])
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line.pop("gpus") for line in lines] == [[], None]
    older = "".join(json.dumps(line) + "\n" for line in lines).encode()
    for frame in decode(older):
        assert isinstance(frame.event, m.SnapshotEvent) and frame.event.snapshot.gpus == ()


def test_a_divided_model_is_recorded_and_recordings_from_before_are_read() -> None:
    divided = synthetic.divided_snapshot(1.0)
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(divided))]))
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent)
    assert frame.event.snapshot.memory == divided.memory
    line["memory"] = line["memory"][:-2]
    line["plan"] = {k: v for k, v in line["plan"].items() if not k.startswith("host_")}
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent)
    read = frame.event.snapshot.memory
    assert (read.host_weights, read.host_kv_cache, read.plan.host_layers) == (0, 0, 0)
    assert (read.weights, read.wasted) == (divided.memory.weights, divided.memory.wasted)
    line["memory"] = line["memory"][:-2]
    with pytest.raises(ValueError, match="7"):
        list(decode(json.dumps(line).encode() + b"\n"))


@pytest.mark.parametrize("num_later", [0, 1, 2, 3])
def test_steps_of_recordings_from_before_are_read(num_later: int) -> None:
    step = StepRecord(
        3, 0.5, 0.1, (), 1, 0, held_back=("d",), kv_usage=0.5, num_threads=2, exchange_s=0.25
    )
    snapshot = dataclasses.replace(synthetic.snapshot(1.0), steps=(step,))
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(snapshot))]))
    line["steps"] = [fields[: 13 + num_later] for fields in line["steps"]]
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent)
    (read,) = frame.event.snapshot.steps
    held_back = step.held_back if num_later else ()
    kv_usage = step.kv_usage if num_later > 1 else None
    num_threads = step.num_threads if num_later > 2 else 0
    assert read == dataclasses.replace(
        step, held_back=held_back, kv_usage=kv_usage, num_threads=num_threads, exchange_s=0.0
    )


@pytest.mark.parametrize("field", ["num_ranks", "num_stages"])
def test_the_parts_of_a_model_are_recorded_and_recordings_from_before_are_read(field: str) -> None:
    snapshot = synthetic.snapshot(1.0)
    divided = dataclasses.replace(
        snapshot, model=dataclasses.replace(snapshot.model, **{field: 2})
    )
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(divided))]))
    for name, count in (("", 2), (field, 1)):
        line["model"] = {k: v for k, v in line["model"].items() if k != name}
        (frame,) = decode(json.dumps(line).encode() + b"\n")
        assert isinstance(frame.event, m.SnapshotEvent)
        assert getattr(frame.event.snapshot.model, field) == count


def test_every_kind_of_event_comes_back() -> None:
    times = RequestTimes(1.0, 1.1, (TokenEvent(1.2, 1), TokenEvent(1.3, 2)), 1.3)
    ended = m.OutputEvent(
        "a", "", (), 1.3, 7, 9, 4, finish_reason=FinishReason.LENGTH, times=times, num_preemptions=3
    )
    events: list[m.Event] = [
        LOADED, m.Reconfigured(CONFIG, Change.LIVE, 0.5), m.PeaksMeasured(PEAKS),
        m.PeaksMeasured(None), ended, m.EngineCrashed(ErrorInfo("why", "do", "X"), ""),
        m.Unloaded(),
    ]  # fmt: skip
    frames = [Frame(float(at), event) for at, event in enumerate(events)]
    assert list(decode(encode(frames))) == frames


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"t":1,"k":"else"}\n', b"not json\n"])
def test_a_foreign_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        list(decode(line))


# The file -------------------------------------------------------------------------------------


def make_file(folder: Path, segments: int = 3) -> Path:
    path = folder / f"a{file.SUFFIX}"
    snapshot = dataclasses.replace(synthetic.snapshot(1.0, num_running=2), config=CONFIG)
    frames = [Frame(float(i), m.SnapshotEvent(snapshot)) for i in range(4)]
    parts = [file.pack([Frame(0.0, LOADED), *frames])] * segments
    file.write(path, {"created": "2026-11-21T13:00:00"}, parts)
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = file.read(make_file(tmp_path))
    assert len(recording.frames) == 15 and recording.notice == ""
    assert recording.about["created"] == "2026-11-21T13:00:00"
    assert list(tmp_path.iterdir()) == [recording.path]  # no part is left


def test_a_file_cut_anywhere_is_opened_as_far_as_it_goes_or_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    data = path.read_bytes()
    lengths = set()
    for cut in range(1, len(data), 37):
        path.write_bytes(data[:cut])
        try:
            recording = file.read(path)
        except RecordingError as error:
            assert error.cause and error.remedy
            continue
        assert len(recording.frames) <= 15
        lengths.add(len(recording.frames))
        assert len(recording.frames) % 5 == 0 or "readable" in recording.notice
    assert {5, 10} < lengths


@given(st.integers(0, 5000), st.integers(1, 255))
def test_a_damaged_file_never_raises_anything_else(place: int, flip: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = make_file(Path(folder), 2)
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= flip
        path.write_bytes(bytes(data))
        try:
            assert len(file.read(path).frames) <= 10
        except RecordingError as error:
            assert error.cause


@pytest.mark.parametrize(
    ("data", "figures", "part"),
    [
        (b"GIF89a....", [], ""),
        (b"", [], ""),
        (b"INFERDECK-FLIGHT 99\n{}\n", [99, file.VERSION], "format"),
        (b"INFERDECK-FLIGHT 1\n{\n", [], "header"),
        (b"INFERDECK-FLIGHT 1\n{}\n", [], "data"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_reason(
    tmp_path: Path, data: bytes, figures: list[int], part: str
) -> None:
    path = tmp_path / "x.inferdeck-flight"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=f"inferdeck-flight.*{part}") as raised:
        file.read(path)
    assert numbers(raised.value.cause) == figures and raised.value.remedy
    with pytest.raises(RecordingError, match="none"):
        file.read(tmp_path / "none")


def test_long_pauses_are_shortened() -> None:
    frames = [Frame(at, m.Unloaded()) for at in (100.0, 100.5, 4000.0, 4001.0)]
    assert playing_times(frames) == [0.0, 0.5, 0.5 + LONGEST_PAUSE_S, 1.5 + LONGEST_PAUSE_S]


# The real engine ------------------------------------------------------------------------------


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot) -> Iterator[Application]:
    made = Application(qapp)
    made.show()
    with qtbot.waitSignal(made.bridge.loaded, timeout=LOAD_MS):
        made.startup.open_first_model({"num_threads": 1})
    yield made
    made.shutdown()


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
        made_when_drawn = {"p50", "p99", "before"}
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


# Playing --------------------------------------------------------------------------------------


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
