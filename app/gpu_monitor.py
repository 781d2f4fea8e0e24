"""What the driver tells of this machine's NVIDIA GPUs, as signals."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from engine.gpu_watch import GpuWatch
from engine.snapshot import GpuFigures


class GpuMonitor(QObject):
    """`figures` once a second: time (`time.perf_counter`), tuple[GpuFigures, ...]. The driver is
    asked on a thread of its own. Silent where there is none."""

    figures = Signal(float, object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._watch = GpuWatch(self._on_figures)

    @property
    def is_running(self) -> bool:
        return self._watch.is_running

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def _on_figures(self, time: float, found: tuple[GpuFigures, ...]) -> None:
        self.figures.emit(time, found)  # from the watch's thread: Qt queues it
