"""Replays a recording: the bridge's signals, at the recorded speed or another."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence

from PySide6.QtCore import QObject, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QComboBox, QFrame, QLabel, QSlider, QWidget

from app.features.recording.marks import (
    EventMark,
    event_marks,
    mark_after,
    mark_before,
    requests_of,
)
from app.features.recording.scrubber import MarkStrip
from app.link.bridge import EngineState
from app.wire.recording import Frame
from app.wire.snapshots import merge_snapshots
from engine import messages
from engine.snapshot import EngineSnapshot
from engine.units import TIMES, duration_text
from widgets.controls.buttons import IconButton
from widgets.controls.layouts import dressed, hbox, vbox
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font

TICK_MS = 100
LONGEST_PAUSE_S = 2.0
"""Longer pauses of an idle engine are shortened to this."""
MOST_MERGED = 600
"""Snapshots delivered after a jump; more are merged: long jumps are as fast as short ones."""
_SLICE_S = 0.02  # of work at a time: the window stays alive during a jump


class Player(QObject):
    """Emits the signals of the engine's views. Times are seconds of playback, from 0 to
    `duration`, with long pauses shortened."""

    ended = Signal(object)
    loaded = Signal(object)
    unloaded = Signal()
    reconfigured = Signal(object)
    snapshot = Signal(object)
    block_inspected = Signal(object)
    peaks_measured = Signal(object)
    steps_profiled = Signal(object)
    crashed = Signal(object)
    state_changed = Signal(object)

    restarted = Signal()  # playback starts over: clear the views
    moved = Signal(float)  # the position
    playing_changed = Signal(bool)
    pace_changed = Signal(float)

    def __init__(self, frames: Sequence[Frame], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._frames = tuple(frames)
        self._times = playing_times(self._frames)
        self.names = request_names(self._frames)
        self.marks = event_marks(self._frames, self._times, self.names)
        self._next = 0  # index of the frame that is handed on next
        self._target = 0  # frames before this are handed on by the jump under way
        self.position = 0.0
        self._ticked_at = 0.0
        self._speed = 1.0
        self._timer = QTimer(self, interval=TICK_MS)
        self._timer.timeout.connect(self._tick)
        self._jump = QTimer(self, interval=0)
        self._jump.timeout.connect(self._jump_on)
        self._group = 1

    # Commands of the views: a recording answers none ---------------------------------------------

    def inspect_block(self, block: int) -> None:
        """Block contents are not recorded."""

    def abort(self, request_id: str) -> None:
        """Nothing to abort."""

    def measure_peaks(self) -> None:
        """The recording has them."""

    def profile_steps(self, num_steps: int) -> None:
        """Nothing to profile."""

    # Playing ------------------------------------------------------------------------------------

    @property
    def duration(self) -> float:
        return self._times[-1] if self._times else 0.0

    @property
    def beginning(self) -> float:
        """The first position with something to show."""
        shown = (
            at for at, frame in zip(self._times, self._frames, strict=True)
            if isinstance(frame.event, messages.SnapshotEvent)
        )  # fmt: skip
        return next(shown, 0.0)

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._speed = speed
        self.pace_changed.emit(self.pace)

    @property
    def pace(self) -> float:
        """Recorded seconds per second: 0 while paused."""
        return self._speed if self.is_playing else 0.0

    @property
    def is_playing(self) -> bool:
        return self._timer.isActive()

    @property
    def is_jumping(self) -> bool:
        return self._jump.isActive()

    def play(self) -> None:
        """Continue; from the beginning if at the end."""
        if self.position >= self.duration:
            self.seek(0.0)
        if not self.is_playing:
            self._ticked_at = time.perf_counter()
            self._timer.start()
            self.playing_changed.emit(True)
            self.pace_changed.emit(self.pace)

    def pause(self) -> None:
        if self.is_playing:
            self._timer.stop()
            self.pace_changed.emit(self.pace)
            self.playing_changed.emit(False)

    def seek(self, position: float) -> None:
        """Show a position: forward from the current one, backward from the beginning."""
        self.position = min(max(position, 0.0), self.duration)
        self._target = bisect_right(self._times, self.position)
        if self._target < self._next:
            self._next = 0
            self.restarted.emit()
        self._group = max(1, (self._target - self._next) // MOST_MERGED)
        self._jump.start()
        self.moved.emit(self.position)

    def step(self, frames: int) -> None:
        if self._times:
            index = min(max(self._next - 1 + frames, 0), len(self._times) - 1)
            self.seek(self._times[index])

    def next_mark(self) -> None:
        self._seek_mark(mark_after(self.marks, self.position))

    def previous_mark(self) -> None:
        self._seek_mark(mark_before(self.marks, self.position))

    def _seek_mark(self, mark: EventMark | None) -> None:
        if mark is not None:
            self.seek(mark.at)

    def stop(self) -> None:
        self.pause()
        self._jump.stop()

    def _tick(self) -> None:
        now = time.perf_counter()
        elapsed, self._ticked_at = now - self._ticked_at, now
        if self.is_jumping:
            return
        self.position = min(self.position + elapsed * self._speed, self.duration)
        self._hand_on(self._next, bisect_right(self._times, self.position))
        self.moved.emit(self.position)
        if self.position >= self.duration:
            self.pause()

    def _jump_on(self) -> None:
        until = time.perf_counter() + _SLICE_S
        while self._next < self._target and time.perf_counter() < until:
            self._hand_on(self._next, min(self._next + self._group, self._target))
        if self._next >= self._target:
            self._jump.stop()
            self.moved.emit(self.position)

    def _hand_on(self, first: int, end: int) -> None:
        """Deliver frames first to end - 1; merge consecutive snapshots."""
        snapshots: list[EngineSnapshot] = []
        for frame in self._frames[first:end]:
            if isinstance(frame.event, messages.SnapshotEvent):
                snapshots.append(frame.event.snapshot)
            else:
                self._hand_on_snapshots(snapshots)
                self._answer(frame.event)
        self._hand_on_snapshots(snapshots)
        self._next = max(first, end)

    def _hand_on_snapshots(self, snapshots: list[EngineSnapshot]) -> None:
        if snapshots:
            self.snapshot.emit(merge_snapshots(snapshots))
            snapshots.clear()

    def _answer(self, event: messages.Event) -> None:
        match event:
            case messages.OutputEvent():
                self.ended.emit(event)
            case messages.Loaded():
                self.state_changed.emit(EngineState.READY)
                self.loaded.emit(event)
            case messages.Reconfigured():
                self.reconfigured.emit(event)
            case messages.PeaksMeasured():
                self.peaks_measured.emit(event)
            case messages.Unloaded():
                self.state_changed.emit(EngineState.EMPTY)
                self.unloaded.emit()
            case messages.EngineCrashed():
                self.state_changed.emit(EngineState.CRASHED)
                self.crashed.emit(event)


def playing_times(frames: Sequence[Frame]) -> list[float]:
    """Playback time of each frame, with long pauses shortened."""
    times: list[float] = []
    for before, frame in zip([*frames[:1], *frames], frames, strict=False):
        gap = min(max(0.0, frame.time - before.time), LONGEST_PAUSE_S)
        times.append((times[-1] if times else 0.0) + gap)
    return times


def request_names(frames: Sequence[Frame]) -> dict[str, str]:
    """Request names by order of appearance: titles are not recorded."""
    names: dict[str, str] = {}
    for frame in frames:
        if isinstance(frame.event, messages.SnapshotEvent):
            seen = requests_of(frame.event.snapshot)
        elif isinstance(frame.event, messages.OutputEvent):
            seen = [frame.event.request_id]
        else:
            continue
        for request_id in seen:
            names.setdefault(request_id, f"request {len(names) + 1}")
    return names


SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TICKS_PER_S = 20
_KEYS = ("Ctrl+Left", "Ctrl+P", "Ctrl+Right")
_MARK_KEYS = ("Ctrl+Shift+Left", "Ctrl+Shift+Right")


class PlayBar(QFrame):
    """Playback controls, with shortcuts for the whole window."""

    def __init__(self, player: Player, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._player = player
        dressed(self, "Playback", panel=True)
        self.play = IconButton("play", "Play (Ctrl+P)", self.toggle)
        back, on = "Previous snapshot (Ctrl+Left)", "Next snapshot (Ctrl+Right)"
        self.back = IconButton("chevron-left", back, lambda: player.step(-1))
        self.on = IconButton("chevron-right", on, lambda: player.step(1))
        for button, keys in zip((self.back, self.play, self.on), _KEYS, strict=True):
            button.setShortcut(keys)
        self.slider = dressed(
            QSlider(Qt.Orientation.Horizontal), "Playback position",
            f"Playback position. Idle gaps are shortened to {duration_text(LONGEST_PAUSE_S)}. "
            "Previous and next mark: Ctrl+Shift+Left, Ctrl+Shift+Right.",
        )  # fmt: skip
        self.slider.setRange(0, max(1, round(player.duration * _TICKS_PER_S)))
        self.slider.setPageStep(10 * _TICKS_PER_S)
        self.slider.valueChanged.connect(lambda value: player.seek(value / _TICKS_PER_S))
        self.time = QLabel()
        self.time.setFont(figure_font())
        self.speed = dressed(QComboBox(), "Speed", "Playback speed")
        self.speed.addItems([f"{speed:g}{TIMES}" for speed in SPEEDS])
        self.speed.setCurrentIndex(SPEEDS.index(1.0))
        self.speed.currentIndexChanged.connect(self._on_speed)
        self.marks = MarkStrip(player.marks, player.duration)
        self.marks.chosen.connect(player.seek)
        for keys, do in zip(_MARK_KEYS, (player.previous_mark, player.next_mark), strict=True):
            QShortcut(QKeySequence(keys), self).activated.connect(do)
        scrubber = vbox(self.marks, self.slider, spacing=0)
        hbox(
            self.back, self.play, self.on, (scrubber, 1), self.time, self.speed,
            of=self, margins=(SPACE_3, SPACE_1, SPACE_3, SPACE_2),
        )  # fmt: skip
        player.moved.connect(self._show_position)
        player.playing_changed.connect(self._show_playing)
        self._show_position(player.position)

    def toggle(self) -> None:
        if self._player.is_playing:
            self._player.pause()
        else:
            self._player.play()

    def _on_speed(self, index: int) -> None:
        self._player.speed = SPEEDS[index]

    def _show_playing(self, plays: bool) -> None:
        text = "Pause (Ctrl+P)" if plays else "Play (Ctrl+P)"
        set_icon(self.play, "pause" if plays else "play")
        dressed(self.play, text, text)

    def _show_position(self, position: float) -> None:
        if not self.slider.isSliderDown():
            with QSignalBlocker(self.slider):
                self.slider.setValue(round(position * _TICKS_PER_S))
        self.time.setText(f"{_clock(position)} of {_clock(self._player.duration)}")


def _clock(seconds: float) -> str:
    """ "1:05.2"."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}:{rest:04.1f}"
