"""Measured peak rates of a device: bytes read per second, FLOP/s.

The reference of `engine.telemetry.step_cost`. Imports no torch until it measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import harmonic_mean
from typing import TYPE_CHECKING, NamedTuple

from engine.hardware.devices import CPU, is_cuda
from engine.hardware.idle_cores import OtherPrograms
from engine.hardware.machine import free_memory, has_fast_16bit, machine_name
from engine.hardware.malloc import give_back

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.snapshot import ModelInfo

SUM_BYTES, LEAST_SUM_BYTES = 2**30, 2**28
"""Read by the sum: far more than any cache holds."""
_SUM_REPEATS = 5
_ROWS, _WIDTH = 512, 2048  # of the product: 4.3 GFLOP
_GPU_ROWS, _GPU_WIDTH = 8192, 8192  # 1.1 TFLOP: fills every multiprocessor for a millisecond
DISTURBING_CORES = 0.3
"""Used by other programs: more than a desktop at rest."""
_PRODUCTS_S = 0.3  # time for repeating it: a processor's clock and its other users change


class WeightRate(NamedTuple):
    """Seconds per weight of a linear product of `rows` rows, with weights quantized by `method`
    ("none": unquantized), measured with the kernels that the engine uses."""

    method: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates measured on `machine` (`ModelInfo.device_name`) with `num_threads` threads.
    `flops_per_s`: of a large matmul in `dtype` (in float32 where the CPU has no fast 16-bit
    matmul), and no less than of the engine's own. measured_at: Unix time in seconds, of the first
    of several measurements. busy_cores: used by other programs meanwhile, which share the memory
    bandwidth; 0 where unknown."""

    read_bytes_per_s: float
    flops_per_s: float
    dtype: str
    num_threads: int
    machine: str
    measured_at: float
    busy_cores: float = 0.0
    weight_rates: tuple[WeightRate, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """Whether the machine was busy: the rates are lower bounds."""
        return self.busy_cores >= DISTURBING_CORES

    def with_best_of(self, other: Peaks) -> Peaks:
        """The higher rates of two measurements under the same conditions: whatever else runs can
        only lower them."""
        return replace(
            self,
            read_bytes_per_s=max(self.read_bytes_per_s, other.read_bytes_per_s),
            flops_per_s=max(self.flops_per_s, other.flops_per_s),
            measured_at=min(self.measured_at, other.measured_at),
            busy_cores=min(self.busy_cores, other.busy_cores),
            weight_rates=self.weight_rates or other.weight_rates,
        )


def peaks_for(
    config: EngineConfig,
    model: ModelInfo,
    host_layers: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Peaks:
    """Peak rates of a loaded model's device, with those of the CPU where it computes offloaded
    layers (`host_layers`); see `measure_peaks`."""
    threads = config.num_threads or 1
    peaks = measure_peaks(config.dtype, threads, config.device, cancelled)
    if not host_layers:
        return peaks
    # one after the other: by what of a step's reads and products is the CPU's
    in_layers = model.body_bytes + model.expert_bytes
    share = host_layers / model.num_layers * in_layers / (in_layers + model.output_bytes)
    host = measure_peaks(config.dtype, threads, CPU, cancelled)
    weights = (1.0 - share, share)
    return replace(
        peaks,
        read_bytes_per_s=harmonic_mean((peaks.read_bytes_per_s, host.read_bytes_per_s), weights),
        flops_per_s=harmonic_mean((peaks.flops_per_s, host.flops_per_s), weights),
        machine=model.device_name,
        busy_cores=max(peaks.busy_cores, host.busy_cores),
    )


class PeaksCancelledError(RuntimeError):
    """The measurement was cancelled between two runs."""


def measure_peaks(
    dtype: str, num_threads: int, device: str = CPU, cancelled: Callable[[], bool] = lambda: False
) -> Peaks:
    """Measure for about half a second, on a machine that others keep busy for many. The best of
    several turns counts, because whatever else runs on the machine can only slow it down. Raises
    MemoryError or RuntimeError where there is no room for the measurement, PeaksCancelledError when
    `cancelled`, asked before every turn, says so."""
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    beside = OtherPrograms()
    try:
        with torch.inference_mode():
            return Peaks(
                read_bytes_per_s=_read_bytes_per_s(device, cancelled),
                flops_per_s=_flops_per_s(dtype, device, cancelled),
                dtype=dtype,
                num_threads=num_threads,
                machine=machine_name(device),
                measured_at=time.time(),
                busy_cores=beside.cores(),
            )
    finally:
        torch.set_num_threads(threads_before)
        if is_cuda(device):
            give_back()  # it belongs to the other programs on the GPU again


def _read_bytes_per_s(device: str, cancelled: Callable[[], bool]) -> float:
    """Bandwidth of a sum over memory."""
    import torch

    free, _ = free_memory(device)
    size = max(LEAST_SUM_BYTES, min(SUM_BYTES, free // 4))
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    return size / min(_seconds(data.sum, device, cancelled) for _ in range(_SUM_REPEATS))


def _flops_per_s(dtype: str, device: str, cancelled: Callable[[], bool]) -> float:
    import torch

    count, width = (_GPU_ROWS, _GPU_WIDTH) if is_cuda(device) else (_ROWS, _WIDTH)
    # not ones: a product of equal numbers switches fewer transistors, and is faster than any other
    has_products = is_cuda(device) or has_fast_16bit(dtype)
    number = getattr(torch, dtype) if has_products else torch.float32
    rows = torch.randn(count, width, dtype=number, device=device)
    matrix = torch.randn(width, width, dtype=number, device=device)
    operations = 2 * count * width * width
    turns: list[float] = []
    while len(turns) < 2 or sum(turns) < _PRODUCTS_S:
        turns.append(_seconds(lambda: rows @ matrix.T, device, cancelled))
    return operations / min(turns)


def _seconds(work: Callable[[], object], device: str, cancelled: Callable[[], bool]) -> float:
    """Duration of `work`; on a GPU including the wait for it."""
    import torch

    if cancelled():
        raise PeaksCancelledError("The measurement was cancelled.")
    if is_cuda(device):
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if is_cuda(device):
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
