"""GPU figures from NVIDIA's driver (NVML): memory by process, utilization, power, temperature.

NVML needs no CUDA context, unlike torch, and does not disturb running computations. A call takes up
to a few milliseconds: do not call it on the engine's or the window's thread. Without a driver
everything here returns nothing, without an error.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil

from engine.errors import describe
from engine.snapshot import GpuFigures, GpuProcess

_lock = threading.Lock()
MILLI = 1e-3
_PART_OF = 0.9  # CUDA reports at least this share of the driver's figure, less its own memory


class Driver:
    """An open NVML library; `close` it. Raises whatever pynvml raises where there is none."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()  # counts how often it was called: each Driver closes its own
        self.nvml: Any = pynvml
        # what a container may not see is refused, one by one
        handles = [
            self._try(pynvml.nvmlDeviceGetHandleByIndex, index)
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        self.handles = [handle for handle in handles if handle is not None]

    def close(self) -> None:
        self.nvml.nvmlShutdown()

    def figures(self) -> tuple[GpuFigures, ...]:
        """The figures of every GPU that reports its memory (with MIG it may not), then of all MIG
        instances. Unreported figures are None. Raises NVMLError if the driver was unloaded or the
        GPU fell off the bus."""
        found = list(map(self._figures, self.handles))
        for handle in self.handles:
            found += [self._figures(part, handle) for part in self._parts(handle)]
        return tuple(one for one in found if one is not None)

    def _parts(self, handle: Any) -> Iterator[Any]:
        """The MIG instances of a GPU."""
        nvml = self.nvml
        mode = self._try(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        for index in range(self._try(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = self._try(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            if part is not None:
                yield part

    def _figures(self, handle: Any, whole: Any = None) -> GpuFigures | None:
        """whole: the GPU of which `handle` is a MIG instance; load, power, temperature and clocks
        are the whole GPU's."""
        nvml = self.nvml
        memory = self._try(nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is None:
            return None
        held = self._processes(handle)
        figures = GpuFigures(
            name=self._try(nvml.nvmlDeviceGetName, handle) or nvml.nvmlDeviceGetName(whole),
            uuid=self._try(nvml.nvmlDeviceGetUUID, handle) or "",
            total=int(memory.total),
            used=int(memory.used),
            own=None if held is None else held.pop(os.getpid(), 0),
            processes=() if held is None else tuple(_named(held)),
        )
        if whole is not None:
            return replace(figures, part_of=self._try(nvml.nvmlDeviceGetUUID, whole) or "a GPU")
        load = self._try(nvml.nvmlDeviceGetUtilizationRates, handle)
        watts = self._try(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._try(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        ask_clock, most_clock = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetMaxClockInfo
        return replace(
            figures,
            utilization=None if load is None else load.gpu / 100,
            memory_utilization=None if load is None else load.memory / 100,
            power_w=None if watts is None else watts * MILLI,
            power_limit_w=None if limit is None else limit * MILLI,
            temperature_c=self._try(
                nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            clock_mhz=self._try(ask_clock, handle, nvml.NVML_CLOCK_SM),
            max_clock_mhz=self._try(most_clock, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._try(ask_clock, handle, nvml.NVML_CLOCK_MEM),
        )

    def _processes(self, handle: Any) -> dict[int, int] | None:
        """Process id -> bytes; None where the driver hides it (containers, Windows)."""
        nvml = self.nvml
        computing = self._try(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        drawing = self._try(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        if computing is None or drawing is None:
            return None
        # who does both is in both lists, with the same figure
        held = {process.pid: process.usedGpuMemory for process in (*computing, *drawing)}
        if any(size is None for size in held.values()):
            return None
        return {pid: int(size) for pid, size in held.items()}

    def _try(self, ask: Any, *arguments: Any) -> Any:
        """None if this GPU or driver does not report it."""
        try:
            return ask(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in (
                self.nvml.NVML_ERROR_GPU_IS_LOST, self.nvml.NVML_ERROR_UNINITIALIZED
            ):  # fmt: skip
                raise
            return None


@contextmanager
def opened() -> Iterator[Driver | None]:
    """The open driver; None where there is none."""
    with _lock:
        try:
            driver = Driver()
        except Exception:  # no package, no library or no driver: no GPU
            driver = None
        try:
            yield driver
        finally:
            if driver is not None:
                driver.close()


def figures_of(uuid: str, total: int, known: Sequence[GpuFigures]) -> GpuFigures | None:
    """The figures of the GPU, or MIG instance, with CUDA's `uuid` and `total` bytes; a single GPU
    matches any uuid. None if the driver reports none, or far more memory: then CUDA shows a MIG
    instance."""
    # CUDA reports UUIDs without "GPU-" and "MIG-"
    bare = uuid.partition("-")[2]
    found = [one for one in known if one.uuid.partition("-")[2] == bare]
    found = found or (list(known) if len(known) == 1 else [])
    return next((one for one in found if one.total * _PART_OF <= total), None)


def visible(gpus: Sequence[GpuFigures]) -> tuple[GpuFigures, ...]:
    """The GPUs that CUDA shows to this process, in its order: CUDA_VISIBLE_DEVICES lists them by
    number or UUID prefix, up to the first that does not exist. MIG instances have no numbers."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    wholes = [gpu for gpu in gpus if not gpu.part_of]
    if wanted is None:
        return tuple(wholes)
    found: list[GpuFigures] = []
    for word in wanted.split(","):
        name = word.strip()
        if name.isdecimal() and int(name) < len(wholes):
            found.append(wholes[int(name)])
            continue
        match = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if len(match) != 1:
            break
        found += match
    return tuple(found)


def told_now() -> tuple[GpuFigures, ...]:
    """The figures of every GPU; () where there is no driver, or it was lost."""
    with opened() as driver:
        if driver is None:
            return ()
        try:
            return driver.figures()
        except driver.nvml.NVMLError:
            return ()


def gpu_names() -> tuple[str, ...]:
    """NVIDIA GPUs by name, in the driver's order; empty where there is no driver."""
    with opened() as driver:
        return () if driver is None else tuple(map(driver.nvml.nvmlDeviceGetName, driver.handles))


def driver_version() -> str:
    """The driver's version; empty where there is no driver."""
    with opened() as driver:
        return "" if driver is None else driver.nvml.nvmlSystemGetDriverVersion()


def _named(held: dict[int, int]) -> Iterator[GpuProcess]:
    """The largest first."""
    for pid, size in sorted(held.items(), key=lambda item: -item[1]):
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:  # ended, or another user's
            name = f"process {pid}"
        yield GpuProcess(name, pid, size)


INTERVAL_S = 1.0
log = logging.getLogger(__name__)


class GpuWatch:
    """Polls the figures of every GPU on a thread. `latest`: the last figures; () before the first,
    without a driver, and after the driver was lost. `on_figures(time, figures)` is called on that
    thread, with the time of `time.perf_counter`."""

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

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
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
            log.debug("GPU monitoring is off: %s", error)
            return
        try:
            while driver.handles and not self._stopping.is_set():
                self.latest = driver.figures()
                self._tell(time.perf_counter(), self.latest)
                self._stopping.wait(self._interval)
        except BaseException as error:  # unloaded, reset, or the GPU fell off the bus; a listener
            self.latest = ()
            log.warning("GPU monitoring stopped: %s", describe(error).cause)
        finally:
            driver.close()
