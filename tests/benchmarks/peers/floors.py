"""What the machine needs at least: bytes over its measured memory bandwidth, operations over the
measured rate of its fastest large product."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.bench.runner import read_bandwidth
from engine.hardware.machine import machine_name
from engine.hardware.peaks import Peaks
from engine.telemetry.step_cost import ModelCost, least_time
from tests.benchmarks.peers.work import ITL, OUTPUT, TTFT, Steps, Work

FLAGS = ("amx_int8", "amx_bf16", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512f", "avx2")
PRODUCTS = ((512, 2048), (1024, 2048), (1024, 4096))  # rows, width
REPEATS = 8


def machine_flags() -> dict[str, bool]:
    """Which of the instructions that matter here this processor has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    has = next((line.split() for line in lines if line.startswith("flags")), [])
    return {flag: flag in has for flag in FLAGS}


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of reading, operations per second of products of floating-point numbers
    (bfloat16 or float32, which is the faster on some processors) and of int8."""

    read: float
    floats: float
    int8: float
    num_threads: int

    def peaks(self, bits: int) -> Peaks:
        """For weights of `bits` bits: low-bit ones are multiplied in what is faster."""
        flops = self.floats if bits == 16 else max(self.floats, self.int8)
        return Peaks(self.read, flops, "bfloat16", self.num_threads, machine_name(), time.time())

    def at_peaks(self, cost: ModelCost, bits: int) -> ModelCost:
        """`cost` with as many operations of attention as take its time at `peaks`: it multiplies
        floating-point numbers whatever the weights are."""
        slower = self.peaks(bits).flops_per_s / self.floats
        return replace(cost, flops_per_pair=slower * cost.flops_per_pair)


def measure_rates(num_threads: int) -> Rates:
    """With `num_threads` threads, the best of several."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        floats = max(
            _rate(*size, partial(_product, dtype))
            for size in PRODUCTS
            for dtype in (torch.bfloat16, torch.float32)
        )
        int8 = max(_rate(*size, _int8_product) for size in PRODUCTS)
    finally:
        torch.set_num_threads(before)
    return Rates(read_bandwidth(num_threads), floats, int8, num_threads)


def floor_ms(cost: ModelCost, peaks: Peaks, work: Work, num_output: int) -> dict[str, float]:
    """Least milliseconds to the first token, per further token, and of the whole run."""
    steps = Steps.of(work, num_output)
    prompt = 1000 * least_time(cost.work_of(steps.prompt), peaks).floor
    decode = [1000 * least_time(cost.work_of(counts), peaks).floor for counts in steps.decode]
    found = {TTFT: prompt}
    if decode:
        found |= {ITL: sum(decode) / len(decode), OUTPUT: prompt + sum(decode)}
    return found


def of_floor(work: Work, num_output: int, floor: Mapping[str, float], found: Mapping[str, float]
             ) -> float:  # fmt: skip
    """The floor's fraction of the measured time: 1 is the machine's limit."""
    if work.is_rate:
        return floor[OUTPUT] / (1000 * work.num_requests * num_output / found[OUTPUT])
    return floor[work.measure] / found[work.measure]


def _rate(rows: int, width: int, product: Callable[[int, int], Callable[[], Any]]) -> float:
    run = product(rows, width)
    run()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return 2 * rows * width * width / best


def _product(dtype: torch.dtype, rows: int, width: int) -> Callable[[], Any]:
    # random: a product of equal numbers switches fewer transistors, and is faster than any other
    left = torch.randn(rows, width, dtype=dtype)
    right = torch.randn(width, width, dtype=dtype)
    return lambda: left @ right.T


def _int8_product(rows: int, width: int) -> Callable[[], Any]:
    left = torch.randint(0, 256, (rows, width), dtype=torch.uint8)
    right = torch.randint(-128, 128, (width, width), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(right, [rows, width])
    scales, zeros = torch.ones(width), torch.zeros(width, dtype=torch.int64)
    return lambda: torch.ops.onednn.qlinear_pointwise(
        left, 1.0, 128, packed, scales, zeros, None, 1.0, 0, torch.bfloat16, "none", [], ""
    )
