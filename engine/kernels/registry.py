"""Kernel registry: chooses an implementation by device, format and row count.

Where several would do, a short measurement decides, once per process and dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch

from engine.hardware.devices import gpus, why_not
from engine.kernels import dense, packed, per_channel
from engine.kernels.cpu.check import find
from engine.kernels.cpu.dequantized import MANY_ROWS as MANY_ROWS_OF_CODES
from engine.kernels.measure import (
    Choice,
    dtype_name,
    faster,
    one_at_a_time,
    one_thread,
    shortest_ms,
    times_text,
)
from engine.kernels.triton.support import device_of, problem

CANDIDATES = {
    torch.float32: ("torch", "transposed"),
    torch.bfloat16: ("torch", "transposed", "upcast", "upcast_wide"),
    torch.float16: ("torch", "transposed", "upcast", "upcast_wide"),
}
"""Linear implementations that may be the fastest on a CPU, by dtype; where the CPU kernels are
compiled also "native" in 16 bits. In bfloat16 "tiles" take the place of "transposed", and on AMX of
all but "torch" and "native"."""

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Row counts from which another implementation may take over; a product of n rows uses the largest
that is not above n."""

MANY_ROWS = 192
"""From here on a float32 product is limited by arithmetic, and torch's own is as good as any."""

_WIDTH = 2048  # of the square matrix that is measured
_NUM_MATRICES = 6  # used in turn, as the layers of a model are: 48 MB, more than a core's own cache
_ROWS_TO_MEASURE = 384  # by each candidate; but at least so many products, and at most:
_FEWEST_TURNS, _MOST_TURNS = 3, 10
_HOPELESS = 2.5  # times the fastest: such a candidate is not tried on more rows ...
_HOPELESS_FROM = 16  # ... from here on, where the conversion of the weight is shared by enough
_FEW_ROWS, _MANY_ROWS_OF_BLOCKS = (1, 8), (64, 128, 256, 512)
_NATIVE_DOUBT = 16  # rows: below, reading the weight decides ...
_TILES_DOUBT = 8  # ... where there are no tiles to compute with; with AMX they are the fastest ...
_AMX_DOUBT = 512  # ... from _NATIVE_DOUBT up to here
_BLOCKS_PAY = 0.9  # of the time of plain weights, or less
_IN_BLOCKS = "linear, blocked weights"
_BLOCKED = (Choice(_IN_BLOCKS, "", 1, "onednn", "set explicitly"),)


def choose_linear(dtype: torch.dtype, device: str, rows: int) -> str:
    """Name of the linear implementation for `rows` rows of activations in `dtype`."""
    if device != "cpu" or dtype not in CANDIDATES:
        return "torch"
    return _chosen(linear_choices(dtype), rows)


def choose_blocked(dtype: torch.dtype, rows: int) -> str:
    """Name of the implementation for weights in blocks (`engine.kernels.dense`)."""
    if rows < _MANY_ROWS_OF_BLOCKS[0]:  # asked a hundred times in every step that decodes
        return "onednn"
    return _chosen(blocked_choices(dtype) or _BLOCKED, rows)


def linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices on the CPU for plain weights in one dtype, measured if in doubt."""
    with one_at_a_time:
        return _linear_choices(dtype)


def blocked_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices on the CPU for weights in blocks; none where blocks do not pay."""
    with one_at_a_time:
        return _blocked_choices(dtype)


def quantized_choices() -> tuple[Choice, ...]:
    """What computes quantized products, and the operations between products, on the CPU."""
    found = find()
    tiled = "dequantizes tile by tile in the last-level cache"
    if found.library is None:
        why = f"{tiled}; no compiled kernels: {found.problem}"
        return (Choice("linear, quantized", "any", 1, "tiled", why),)
    why = (
        f"{found.library.origin} for {found.library.instructions}: reads packed "
        "weights once; batch-invariant; integer weights: quantizes activations"
    )
    fused = "compiled: one pass each, computes in float32, rounds once"
    tiles = found.library.has_tiles
    many = (
        Choice(
            "linear, fp8 and nf4", "bfloat16", MANY_ROWS_OF_CODES, "tiles",
            "dequantizes once for all rows",
        ),
    )  # fmt: skip
    lossless = Choice(
        "linear, compressed", "bfloat16", 1, "tiles",
        "lossless, 12 bits per weight: reads 25% less than 16; batch-invariant",
    )  # fmt: skip
    return (
        *((lossless,) if found.library.has_amx else ()),
        Choice("linear, quantized", "any", 1, "native", why),
        *(many if tiles else ()),
        Choice("linear, quantized, partial last group", "any", 1, "tiled", tiled),
        Choice("norms, rotary embedding, SiLU in 16-bit models", "any", 1, "native", fused),
    )


def choices() -> list[Choice]:
    """Every choice on this machine but that of attention (`engine.attention.choices`)."""
    found = [c for dtype in CANDIDATES for c in (*linear_choices(dtype), *blocked_choices(dtype))]
    devices = [torch.device(one.device) for one in gpus() if not why_not(one)]
    on_gpus = [choice for device in devices for choice in gpu_choices(device)]
    return [*found, *quantized_choices(), *on_gpus]


def gpu_choices(device: torch.device) -> list[Choice]:
    """The choices on one GPU."""
    if problem(device):
        why = f"{problem(device)}: dequantizes in chunks of rows, then torch matmul"
        return [Choice(f"linear, quantized, {device}", "any", 1, "stripes", why)]
    grouped = f"linear, packed 4-bit, 8-bit and nf4, {device}"
    integers, floats = f"linear, int8, {device}", f"linear, fp8, {device}"
    many = per_channel.FEW_ROWS + 1
    found = [
        Choice(grouped, "any", 1, "one row", "memory-bound: uses no tensor cores"),
        Choice(grouped, "any", 2, "few rows", "reads each weight once, dequantizes in registers"),
        Choice(grouped, "any", packed.FEW_ROWS + 1, "tile", "same kernel, up to 64 rows per tile"),
        Choice(
            grouped, "any", packed.TILE_ROWS + 1, "stripes",
            "compute-bound: dequantizes, then torch matmul; a load-time benchmark "
            "may lower the threshold",
        ),
        Choice(integers, "any", 1, "triton", "exact integer matmul; quantizes activations per row"),
        Choice(integers, "any", many, "torch", "exact integer matmul with torch"),
        Choice(floats, "any", 1, "triton", "memory-bound: activations not quantized"),
    ]  # fmt: skip
    if device_of(device).capability >= (8, 9):
        why = "per-channel scales: quantizes activations to float8 per row"
        found.append(Choice(floats, "bfloat16", many, "torch", why))
    small = "norm, rotary, gated activation"
    found.append(Choice(f"{small}, {device}", "any", 1, "triton", "one kernel launch each"))
    return found


@cache
def _linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    return _float32_choices() if dtype is torch.float32 else _16bit_choices(dtype)


def _float32_choices() -> tuple[Choice, ...]:
    """One decision for all products of a few rows, from two sizes together: the difference is a
    property of the library, and one decision is less easily upset by a busy moment."""
    candidates = CANDIDATES[torch.float32]
    few = [linear_ms(candidates, torch.float32, rows) for rows in (4, 16)]
    times = {key: sum(found[key] for found in few) for key in candidates}
    reason = _measured(times, torch.get_num_threads())
    return (
        Choice("linear", "float32", 1, "torch", "one row: matrix-vector product"),
        Choice("linear", "float32", 2, faster("torch", times), reason),
        Choice("linear", "float32", MANY_ROWS, "torch", "many rows: compute-bound"),
    )


def _16bit_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """Without 16-bit instructions torch's own product costs the same for every row; converting
    the weight pays from some row count on. With them it can still pay for many rows. All
    candidates split alike over threads, so one thread decides: on several, a busy machine makes
    parallel regions wait, and a wrong choice here costs a factor of five.

    The compiled product reads a weight once for a few rows; it is in doubt from some row count on,
    and not taken again once something else is faster: the rows whose result does not depend on
    their number are those from 1 on."""
    name = dtype_name(dtype)
    result: list[Choice] = []
    candidates, chosen, in_doubt = CANDIDATES[dtype], "torch", 1
    if (compiled := find().library) is not None:
        in_doubt = _NATIVE_DOUBT
        if compiled.has_tiles and dtype is torch.bfloat16:
            others = () if compiled.has_amx else ("upcast", "upcast_wide")
            candidates = ("tiles", "torch", *others)
            in_doubt = _NATIVE_DOUBT if compiled.has_amx else _TILES_DOUBT
        has_amx = compiled.has_amx and dtype is torch.bfloat16
        doubted = _AMX_DOUBT if has_amx else in_doubt
        why = f"few rows: compiled, reads weights once; benchmarked at {doubted}+ rows"
        result.append(Choice("linear", name, 1, "native", why))
        candidates, chosen = ("native", *candidates), "native"
        if has_amx:
            result.append(Choice("linear", name, in_doubt, "tiles", "several rows: AMX"))
            candidates, chosen, in_doubt = candidates[1:], "tiles", doubted
    for rows in ROW_BUCKETS:
        if rows < in_doubt:
            continue
        with one_thread():
            times = linear_ms(candidates, dtype, rows, time.thread_time)
        fastest = faster(chosen, times)
        if fastest != chosen or not result:
            result.append(Choice("linear", name, rows, fastest, _measured(times, 1)))
        if chosen == "native" and fastest != chosen:
            candidates = tuple(key for key in candidates if key != "native")
        chosen = fastest
        if rows >= _HOPELESS_FROM:
            limit = _HOPELESS * min(times.values())
            candidates = tuple(key for key in candidates if times[key] < limit)
    return tuple(result)


@cache
def _blocked_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """Blocks are for a few rows, where every weight is read for little arithmetic; they have to
    pay clearly, for arranging them takes time when a model is loaded. Measured on all threads: one
    alone cannot read memory as fast as they all can, and hides what blocks gain."""
    if not dense.supports_blocks(dtype):
        return ()
    if _chosen(_linear_choices(dtype), 1) == "native":  # reads plain weights as fast
        return ()
    name = dtype_name(dtype)
    plain, inside, slower, reasons = 0.0, 0.0, False, []
    for rows in _FEW_ROWS:
        own = _chosen(_linear_choices(dtype), rows)
        times = linear_ms((own, "onednn"), dtype, rows)
        plain, inside = plain + times[own], inside + times["onednn"]
        slower |= times["onednn"] > times[own]
        reasons.append(f"row count {rows}: {_measured(times, torch.get_num_threads())}")
    if slower or inside > _BLOCKS_PAY * plain:
        return ()
    result = [Choice(_IN_BLOCKS, name, 1, "onednn", "; ".join(reasons))]
    if dtype is torch.float32:  # plain again would gain nothing: the arithmetic is the same
        return tuple(result)
    for rows in _MANY_ROWS_OF_BLOCKS:
        with one_thread():
            times = linear_ms(("onednn", "unblocked"), dtype, rows, time.thread_time)
        if faster("onednn", times) == "unblocked":
            return (*result, Choice(_IN_BLOCKS, name, rows, "unblocked", _measured(times, 1)))
    return tuple(result)


def _chosen(table: Sequence[Choice], rows: int) -> str:
    return next(c.implementation for c in reversed(table) if c.rows <= max(rows, 1))


def _measured(times: dict[str, float], threads: int) -> str:
    return f"{times_text(times)} (benchmarked at {_WIDTH} x {_WIDTH}, thread count {threads})"


@torch.inference_mode()
def linear_ms(
    candidates: Sequence[str],
    dtype: torch.dtype,
    rows: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Milliseconds of one product of `rows` rows by each candidate."""
    weights = [torch.ones(_WIDTH, _WIDTH, dtype=dtype) for _ in range(_NUM_MATRICES)]
    in_blocks = []
    if any(name in dense.BLOCKED for name in candidates):
        in_blocks = [dense.block(weight) for weight in weights]
    x = torch.ones(rows, _WIDTH, dtype=dtype)

    def call(name: str, turn: int) -> object:
        index = turn % _NUM_MATRICES
        if name in dense.BLOCKED:
            return dense.BLOCKED[name](x, in_blocks[index], None)
        return dense.IMPLEMENTATIONS[name](x, weights[index], None)

    turns = min(max(_ROWS_TO_MEASURE // rows, _FEWEST_TURNS), _MOST_TURNS)
    return shortest_ms({name: partial(call, name) for name in candidates}, turns, clock)
