"""How fast weights of each format are multiplied here: the base of estimates of a quantization.

Bytes alone mislead. A kernel that reads few bytes may spend its time on converting them, and the
plain product may stay far below the memory's bandwidth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch

from engine.hardware.peaks import WeightRate
from engine.kernels.linear import PlainWeights, fastest_form
from engine.kernels.measure import one_at_a_time, one_thread, shortest_ms
from engine.kernels.quantized import make_weights
from engine.kernels.weights import Weights
from engine.numerics.scheme import Scheme

METHODS = ("none", "int8", "int4", "nf4", "fp8")
ROWS = (1, 4, 16, 64)
_NUM_WEIGHTS = 2**22
_TURNS = 4
_PROMPT_ROWS, _PROMPT_S = 512, 0.3
_MOST_S = 3.0
"""A machine that is too busy for a measurement within that has none."""


@torch.inference_mode()
def weight_rates(
    dtype: torch.dtype,
    device: str,
    hidden_size: int,
    group_size: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[WeightRate, ...]:
    """Seconds per weight in products of each format and each of ROWS, with matrices of the model's
    width; () where that takes too long. On a CPU of one thread, by its own clock, which leaves out
    what else runs: the reads of all threads together are a matter of the memory's bandwidth."""
    on_cpu, began = device == "cpu", time.monotonic()
    outputs = max(1, _NUM_WEIGHTS // hidden_size // 64) * 64
    found = []
    with one_at_a_time, one_thread() if on_cpu else nullcontext():
        plain = torch.randn(outputs, hidden_size, dtype=dtype)
        for method in METHODS:
            held = _held(method, plain, group_size, device)
            for rows in ROWS:
                if cancelled() or time.monotonic() - began > _MOST_S:
                    return ()
                found.append(_rate(method, held, rows, device))
    return tuple(found)


@torch.inference_mode()
def prompt_rate(
    dtype: torch.dtype,
    device: str,
    hidden_size: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> float:
    """FLOP/s of the product of many rows with unquantized weights, by all threads and the kernel
    that the engine chooses: on a processor without matrix units it may be faster than PyTorch's
    product of that dtype. 0 if cancelled before its first turn has ended."""
    outputs = max(1, _NUM_WEIGHTS // hidden_size // 64) * 64
    plain = torch.randn(outputs, hidden_size, dtype=dtype)
    held = _held("none", plain, 0, device)
    x = torch.randn(_PROMPT_ROWS, hidden_size, dtype=dtype, device=device)
    shortest, began, turn = float("inf"), time.monotonic(), 0
    with one_at_a_time:
        while turn < _TURNS or time.monotonic() - began < _PROMPT_S:
            if cancelled():
                break
            start = time.perf_counter()
            _multiply(held, x, turn)
            shortest, turn = min(shortest, time.perf_counter() - start), turn + 1
    return 2 * _PROMPT_ROWS * outputs * hidden_size / shortest


def _held(method: str, weight: torch.Tensor, group_size: int, device: str) -> Weights:
    if method != "none":
        return make_weights([Scheme(method, group_size).rounded(weight)], weight.dtype, device)
    return (device == "cpu" and fastest_form(weight)) or PlainWeights(weight.to(device))


def _rate(method: str, held: Weights, rows: int, device: str) -> WeightRate:
    outputs, inputs = held.shape
    x = torch.randn(rows, inputs, dtype=held.dtype, device=device)
    clock = time.thread_time if device == "cpu" else time.perf_counter
    ms = shortest_ms({method: partial(_multiply, held, x)}, _TURNS, clock)[method]
    return WeightRate(method, rows, ms / 1e3 / (outputs * inputs))


def _multiply(held: Weights, x: torch.Tensor, turn: int) -> None:
    held.multiply(x, None)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
