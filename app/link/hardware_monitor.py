"""GPU figures as signals, and the measured peaks of this machine."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from app.link.bridge import EngineBridge, EngineState
from app.paths import data_dir
from app.storage.json_file import write_soon
from engine import messages
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.hardware.nvml import GpuWatch, visible
from engine.hardware.peaks import Peaks
from engine.json_file import read_json
from engine.snapshot import EngineSnapshot, GpuFigures, ModelInfo


class GpuFeed(QObject):
    """GPUs of the machine that runs the engine: this one, or that of a remote engine's snapshots.
    `figures`: time, all GPUs, and those that CUDA can use. `watch` polls this machine's driver on
    its own thread, once a second: `measured`, with the time (`time.perf_counter`)."""

    figures = Signal(float, object, object)
    measured = Signal(float, object)  # from the watch's thread: Qt queues it

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.watch = GpuWatch(self.measured.emit)
        self._bridge = bridge
        self._remote: tuple[GpuFigures, ...] | None = None  # None: the engine runs here
        self.measured.connect(self._on_own)
        bridge.snapshot.connect(self._on_snapshot)

    def _on_own(self, at: float, gpus: tuple[GpuFigures, ...]) -> None:
        if not self._bridge.is_remote:
            self.figures.emit(at, gpus, visible(gpus))

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        """After a change of machine this also clears the figures, if the new one has no GPU."""
        gpus = snapshot.gpus if self._bridge.is_remote else None
        if gpus != self._remote:
            self._remote = gpus
            gpus = gpus or ()
            # remote engines do not report which parts of a partitioned GPU CUDA can use
            usable = tuple(gpu for gpu in gpus if not gpu.part_of)
            self.figures.emit(snapshot.time, gpus, usable)


log = logging.getLogger(__name__)

HELD_S = 3600.0
"""For so long the best of several measurements counts. Later ones replace it: a laptop on battery,
another power mode."""


class PeaksStore:
    """Measured peaks in a file: one entry per machine, dtype and thread count."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_dir() / "peaks.json"

    def find(self, config: EngineConfig, device_name: str) -> Peaks | None:
        """The peaks of this device for such a configuration; None if not measured."""
        wanted = (device_name, config.dtype, config.num_threads)
        return next((p for p in self._read() if _conditions(p) == wanted), None)

    def keep(self, peaks: Peaks) -> None:
        """Replace the peaks of the same conditions."""
        others = [p for p in self._read() if _conditions(p) != _conditions(peaks)]
        entries = [dataclasses.asdict(p) for p in [*others, peaks]]
        try:
            write_soon(self.path, json.dumps(entries, indent=1))
        except OSError as error:
            log.warning("cannot save the measured hardware peaks: %s", error)

    def _read(self) -> list[Peaks]:
        try:
            return read_json(self.path, list[Peaks])
        except CheckpointError:
            return []  # missing or damaged: measured again


def _conditions(peaks: Peaks) -> tuple[str, str, int]:
    return peaks.machine, peaks.dtype, peaks.num_threads


class PeaksRecorder(QObject):
    """Announces known peaks with every model, and saves measured ones."""

    def __init__(self, bridge: EngineBridge, store: PeaksStore, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge, self._store = bridge, store
        self._device_name = ""
        bridge.loaded.connect(lambda event: self._announce(event.config, event.model))
        bridge.reconfigured.connect(lambda event: self._announce(event.config, event.model))
        bridge.peaks_measured.connect(self._on_measured)

    def _announce(self, config: EngineConfig, model: ModelInfo | None) -> None:
        if model is not None:
            self._device_name = model.device_name
        if self._bridge.is_remote:
            return  # another machine reports its own
        known = self._store.find(config, self._device_name)
        if known is not None:
            self._bridge.peaks_measured.emit(messages.PeaksMeasured(known))

    def _on_measured(self, event: messages.PeaksMeasured) -> None:
        config = self._bridge.config
        if event.peaks is None or config is None or self._bridge.state is not EngineState.READY:
            return
        if self._bridge.is_remote:
            return
        known, peaks = self._store.find(config, self._device_name), event.peaks
        if known is not None:
            is_worse = peaks.is_disturbed and known.busy_cores < peaks.busy_cores
            if is_worse or 0 <= peaks.measured_at - known.measured_at < HELD_S:
                peaks = peaks.with_best_of(known)
        if peaks != known:
            self._store.keep(peaks)
        if peaks != event.peaks:  # after those who hear the event later than this
            kept = messages.PeaksMeasured(peaks)
            QTimer.singleShot(0, self, lambda: self._bridge.peaks_measured.emit(kept))
