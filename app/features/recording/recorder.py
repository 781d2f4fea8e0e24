"""The flight recorder: keeps the engine's last minutes in memory, and saves them to a file.

Frames are collected as they arrive and packed by the segment in a thread. The oldest segments are
dropped first.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.features.recording import file
from app.link.bridge import EngineBridge
from app.link.tasks import run_task
from app.window.help_dialogs import versions
from app.wire.recording import Frame
from engine import messages
from engine.errors import ErrorInfo
from engine.hardware.machine import free_memory, machine_name
from engine.snapshot import BlockSnapshot, EngineSnapshot, StepRecord

SEGMENT_FRAMES, SEGMENT_BYTES = 64, 2**23
"""16 s of a busy engine, less of a large batch: garbage collection visits all unpacked frames."""
MOST_PACKED_BYTES = 2**26
MOST_FRAME_BYTES = 2**28
"""Maximum memory of all unpacked frames: a recording must also fit where it is replayed."""
MANY_BLOCKS, BLOCKS_INTERVAL_S = 4096, 1.0
"""A large cache's block map is most of a frame: it is kept once a second, and when the engine
becomes idle."""
NUM_LAST_STEPS = 50
_ENTRY_BYTES, _REQUEST_BYTES = 250, 600


@dataclass(slots=True)
class _Segment:
    """`before`: configuration frames of its start. `packed` is empty until its thread is done; then
    `frames` has only the first and the last."""

    num_frames: int
    frames: tuple[Frame, ...]
    before: tuple[Frame, ...]
    num_bytes: int  # unpacked
    packed: bytes = b""


class FlightRecorder(QObject):
    """Records always; `save` writes the frames in memory. `begun`: the first frame was recorded."""

    begun = Signal()

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._segments: deque[_Segment] = deque()
        self._open: list[Frame] = []
        self._open_bytes = 0
        self._in_force: dict[type, Frame] = {}  # Loaded and PeaksMeasured, the last of each
        self._before_open: tuple[Frame, ...] = ()
        self._blocks: BlockSnapshot | None = None
        self._blocks_at = float("-inf")
        self.last_steps: deque[StepRecord] = deque(maxlen=NUM_LAST_STEPS)
        bridge.loaded.connect(self._on_loaded)
        for signal in (bridge.reconfigured, bridge.peaks_measured, bridge.crashed):
            signal.connect(self._take)
        bridge.unloaded.connect(lambda: self._take(messages.Unloaded()))
        bridge.ended.connect(self._on_ended)
        bridge.snapshot.connect(self._on_snapshot)

    # What there is -----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.num_frames == 0

    @property
    def num_frames(self) -> int:
        return len(self._open) + sum(segment.num_frames for segment in self._segments)

    @property
    def seconds(self) -> float:
        """Time from the first frame to the last."""
        frames = [*(s.frames[0] for s in self._segments), *self._open[:1]]
        return self._last.time - frames[0].time if frames else 0.0

    @property
    def _last(self) -> Frame:
        return self._open[-1] if self._open else self._segments[-1].frames[-1]

    @property
    def _model_name(self) -> str:
        """Of the model that was loaded last; "" for none."""
        loaded = self._in_force.get(messages.Loaded)
        event = loaded.event if loaded is not None else None
        return event.model.name if isinstance(event, messages.Loaded) else ""

    # Taking ------------------------------------------------------------------------------------

    def _on_loaded(self, event: messages.Loaded) -> None:
        self._in_force.pop(messages.PeaksMeasured, None)
        self._blocks = None
        self.last_steps.clear()
        self._take(event)

    def _on_ended(self, event: messages.OutputEvent) -> None:
        if event.times is not None:
            plain = dataclasses.replace(
                event, text="", token_ids=(), logprobs=(), error=None, is_first=False
            )
            self._take(plain)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self.last_steps.extend(snapshot.steps)
        blocks, count = self._blocks, snapshot.blocks.num_blocks
        due = snapshot.time - self._blocks_at >= BLOCKS_INTERVAL_S or not snapshot.num_running
        size = 0
        if blocks is None or due or count <= MANY_BLOCKS or blocks.num_blocks != count:
            self._blocks, self._blocks_at = snapshot.blocks, snapshot.time
            size = sum(getattr(snapshot.blocks, n).nbytes for n in ("owner", "fill", "ref_count"))
        else:
            snapshot = dataclasses.replace(snapshot, blocks=blocks)
        size += _ENTRY_BYTES * sum(len(step.entries) for step in snapshot.steps)
        size += _REQUEST_BYTES * (1 + len(snapshot.requests))
        self._take(messages.SnapshotEvent(snapshot), size)

    def _take(self, event: messages.Event, num_bytes: int = _REQUEST_BYTES) -> None:
        frame = Frame(time.perf_counter(), event)
        if not self._open:
            self._before_open = tuple(self._in_force.values())
        is_known = isinstance(event, messages.PeaksMeasured) and event.peaks is not None
        if is_known or isinstance(event, messages.Loaded):
            self._in_force[type(event)] = frame
        is_first = self.is_empty
        self._open.append(frame)
        self._open_bytes += num_bytes
        if is_first:
            self.begun.emit()
        if len(self._open) >= SEGMENT_FRAMES or self._open_bytes >= SEGMENT_BYTES:
            self._close_segment()

    def _close_segment(self) -> None:
        frames = tuple(self._open)
        segment = _Segment(len(frames), frames, self._before_open, self._open_bytes)
        self._open, self._open_bytes = [], 0
        self._segments.append(segment)
        run_task(self, partial(file.pack, frames), partial(self._packed, segment),
                 lambda error: None)  # fmt: skip

    def _packed(self, segment: _Segment, packed: bytes) -> None:
        segment.packed = packed
        segment.frames = (segment.frames[0], segment.frames[-1])
        while len(self._segments) > 1 and self._is_too_much():
            self._segments.popleft()

    def _is_too_much(self) -> bool:
        packed = sum(len(segment.packed) for segment in self._segments)
        unpacked = sum(segment.num_bytes for segment in self._segments)
        return packed > MOST_PACKED_BYTES or unpacked > MOST_FRAME_BYTES

    # Saving ------------------------------------------------------------------------------------

    def save(
        self,
        path: Path,
        done: Callable[[float, int], None],
        failed: Callable[[ErrorInfo], None],
        seconds: float | None = None,
    ) -> None:
        """Write the last `seconds`, or everything, in a thread; then `done(seconds, bytes)` of what
        was written, which is whole segments, or `failed`."""
        since = float("-inf") if seconds is None else self._last.time - seconds
        segments = [one for one in self._segments if one.frames[-1].time >= since]
        begin, before = (
            (segments[0].frames[0], segments[0].before) if segments
            else (self._open[0], self._before_open)
        )  # fmt: skip
        parts: list[bytes | tuple[Frame, ...]] = [before]
        parts += [segment.packed or segment.frames for segment in segments]
        parts.append(tuple(self._open))
        length, model = self._last.time - begin.time, self._model_name

        def work() -> int:
            packed = (p if isinstance(p, bytes) else file.pack(p) for p in parts if p)
            about = {**about_machine(), "seconds": round(length, 3), "model": model}
            return file.write(path, about, packed)

        run_task(self, work, partial(done, length), failed)


def about_machine() -> dict[str, Any]:
    """Date, machine and versions, for recordings and crash reports."""
    _, total = free_memory()
    now = time.time()
    return {
        "created": datetime.fromtimestamp(now).isoformat(timespec="seconds"),
        "clock": now - time.perf_counter(),  # turns frame times into dates
        "machine": {"cpu": machine_name(), "memory": total, "threads": os.cpu_count() or 1},
        "versions": dict(versions()),
    }
