"""What the device can do at most: copy, multiply, launch, and answer the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tests.gpu.bench.bench import Bench
from tests.gpu.bench.timing import synchronize, time_turns

Figures = dict[str, object]
_COPY_BYTES, _SIDE, _ROUND_TRIPS, _LAUNCHES = 4 * 2**30, 8192, 200, 500
_QUICK_BYTES, _QUICK_SIDE = 8 * 2**20, 256


def copy(bench: Bench) -> Figures:
    """Bytes per second of a device-to-device copy, read and written, and of a sum, read alone."""
    size = _QUICK_BYTES if bench.quick else _COPY_BYTES
    source = torch.randn(size // 4, device=bench.device)
    target = torch.empty_like(source)
    copied = time_turns(lambda turn: target.copy_(source), bench.device)
    summed = time_turns(lambda turn: source.sum(), bench.device)
    return {
        "bytes_per_s": 2 * size / copied.seconds,
        "read_bytes_per_s": size / summed.seconds,
        "copy": copied.as_dict(),
    }


def product(bench: Bench, precision: str) -> Figures:
    """Operations per second of a large square product of random numbers."""
    side = _QUICK_SIDE if bench.quick else _SIDE
    multiply = _PRODUCTS[precision](side, bench.device)
    timed = time_turns(lambda turn: multiply(), bench.device)
    return {"flops_per_s": 2 * side**3 / timed.seconds, "side": side, "time": timed.as_dict()}


def _bf16(side: int, device: torch.device) -> Callable[[], torch.Tensor]:
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b.t(), out=out)


def _fp8(side: int, device: torch.device) -> Callable[[], torch.Tensor]:
    a, b = (torch.randn(side, side, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(
        a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _int8(side: int, device: torch.device) -> Callable[[], torch.Tensor]:
    a, b = (
        torch.randint(-127, 128, (side, side), device=device, dtype=torch.int8) for _ in range(2)
    )
    return lambda: torch._int_mm(a, b.t())


_PRODUCTS = {"bf16": _bf16, "fp8": _fp8, "int8": _int8}


def launch(bench: Bench) -> Figures:
    """Microseconds that starting a tiny operation takes the host, and the device in a graph."""
    x = torch.zeros(32, device=bench.device)
    launches = 20 if bench.quick else _LAUNCHES
    for _ in range(10):
        x.add_(1)
    synchronize(bench.device)
    began = time.perf_counter()
    for _ in range(launches):
        x.add_(1)
    issued = time.perf_counter() - began
    synchronize(bench.device)
    in_graph = time_turns(lambda turn: x.add_(1), bench.device)
    return {"host_us": issued / launches * 1e6, "device_us": in_graph.seconds * 1e6}


def round_trip(bench: Bench) -> Figures:
    """Microseconds until the host has read a number that was just computed, and to bring some."""
    x = torch.zeros(256, dtype=torch.int64, device=bench.device)
    pinned = torch.zeros(256, dtype=torch.int64, pin_memory=bench.device.type == "cuda")
    trips = 20 if bench.quick else _ROUND_TRIPS

    def read() -> None:
        pinned.copy_(x, non_blocking=True)
        synchronize(bench.device)

    def write() -> None:
        x.copy_(pinned, non_blocking=True)
        synchronize(bench.device)

    return {
        "item_us": _each(lambda: x.add_(1)[0].item(), trips),
        "read_us": _each(read, trips),
        "write_us": _each(write, trips),
    }


def _each(work: Callable[[], object], turns: int) -> float:
    for _ in range(5):
        work()
    began = time.perf_counter()
    for _ in range(turns):
        work()
    return (time.perf_counter() - began) / turns * 1e6
