"""Asks the driver about the GPUs once a second, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from engine.nvml import Driver
from engine.snapshot import GpuFigures

INTERVAL_S = 1.0
log = logging.getLogger(__name__)


class GpuWatch:
    """`latest`: the figures of every GPU, and () before the first answer, without a driver, and
    after it was lost. `on_figures(time, figures)` is called on the watch's thread, with the time of
    `time.perf_counter`."""

    def __init__(
        self,
        on_figures: Callable[[float, tuple[GpuFigures, ...]], None] = lambda time, figures: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.latest: tuple[GpuFigures, ...] = ()
        self._tell = on_figures
        self._interval = interval_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            driver = Driver()
        except Exception as error:  # no package, no library, no driver
            log.debug("no GPU is watched: %s", error)
            return
        try:
            while len(driver) and not self._stopping.is_set():
                self.latest = driver.figures()
                self._tell(time.perf_counter(), self.latest)
                self._stopping.wait(self._interval)
        except driver.lost as error:  # unloaded, reset, or the GPU fell off the bus
            log.warning("the GPUs are not watched any more: %s", error)
            self.latest = ()
        finally:
            driver.close()
