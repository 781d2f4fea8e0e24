"""Which implementation computes an operation: one place, by device, format and number of rows.

Where more than one would do, a short measurement decides, once per process and number format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch

from engine.hardware.devices import gpus, why_not
from engine.kernels import blocked
from engine.kernels.cpu.library import find

CANDIDATES = {
    torch.float32: ("torch", "transposed"),
    torch.bfloat16: ("torch", "transposed", "upcast", "upcast_wide"),
    torch.float16: ("torch", "transposed", "upcast", "upcast_wide"),
}
"""Linear implementations that may be the fastest on a CPU, by number format; in 16 bits also
"native", where code was compiled here."""

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of rows from which another implementation may take over; a product of n rows uses the
largest that is not above n."""

MANY_ROWS = 192
"""From here on a float32 product is limited by arithmetic, and torch's own is as good as any."""

_WIDTH = 2048  # of the square matrix that is measured
_NUM_MATRICES = 6  # used in turn, as the layers of a model are: 48 MB, more than a core's own cache
_ROWS_TO_MEASURE = 384  # by each candidate; but at least so many products, and at most:
_FEWEST_TURNS, _MOST_TURNS = 3, 10
_HOPELESS = 2.5  # times the fastest: such a candidate is not tried on more rows ...
_HOPELESS_FROM = 16  # ... from here on, where the conversion of the weight is shared by enough
_MARGIN = 0.95
_FEW_ROWS, _MANY_ROWS_OF_BLOCKS = (1, 8), (64, 128, 256, 512)
_NATIVE_DOUBT = 16  # rows: below, reading the weight decides
_BLOCKS_PAY = 0.9  # of the time of plain weights, or less
_INT4 = "linear, 4 bits"
_INT4_ROWS = (16, 32, 64, 128, 256, 512)
one_at_a_time = threading.RLock()
"""Two threads that measure at once would disturb each other."""


class Choice(NamedTuple):
    """`operation` in `dtype` with at least `rows` rows is computed by `implementation`."""

    operation: str
    dtype: str
    rows: int
    implementation: str
    reason: str


_IN_BLOCKS = "linear, weights in blocks"
_BLOCKED = (Choice(_IN_BLOCKS, "", 1, "onednn", "made so by hand"),)


def uses_triton(device: torch.device) -> bool:
    """Whether Triton's kernels compute on `device`."""
    from engine.kernels.triton.support import problem

    return not problem(device)


def choose_linear(dtype: torch.dtype, device: str, rows: int) -> str:
    """Name of the linear implementation for `rows` rows of activations in `dtype`."""
    if device != "cpu" or dtype not in CANDIDATES:
        return "torch"
    return _chosen(linear_choices(dtype), rows)


def choose_blocked(dtype: torch.dtype, rows: int) -> str:
    """Name of the implementation for weights in blocks (`engine.kernels.blocked`)."""
    if rows < _MANY_ROWS_OF_BLOCKS[0]:  # asked a hundred times in every step that decodes
        return "onednn"
    return _chosen(blocked_choices(dtype) or _BLOCKED, rows)


def linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices on the CPU for plain weights in one number format, measured if in doubt."""
    with one_at_a_time:
        return _linear_choices(dtype)


def blocked_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices on the CPU for weights in blocks; none where blocks do not pay."""
    with one_at_a_time:
        return _blocked_choices(dtype)


def choose_int4(rows: int) -> str:
    """"packed" or "tiled": how weights of 4 bits are multiplied by `rows` rows of bfloat16."""
    return "packed" if rows < _INT4_ROWS[0] else _chosen(int4_choices(), rows)


def int4_choices() -> tuple[Choice, ...]:
    """The choices on the CPU for weights of 4 bits, where they are not multiplied by code that was
    compiled here."""
    with one_at_a_time:
        return _int4_choices()


def native_choices() -> tuple[Choice, ...]:
    """Whether products with few bits are code that was compiled here (`engine.kernels.cpu`)."""
    found = find()
    operation = "linear, few bits"
    if found.library is None:
        why = f"without code compiled here: {found.problem}"
        return (Choice(operation, "any", 1, "torch", why),)
    why = (
        f"compiled here by {found.library.compiler} for {found.library.instructions}: weights are "
        "read once and as they are, a row's result depends on no other, and activations in float32 "
        "are rounded for int8 alone"
    )
    once = "compiled here: each in one pass, float32 inside, rounded once"
    return (
        Choice(operation, "any", 1, "native", why),
        Choice("norms, rotary embedding, SiLU in 16-bit models", "any", 1, "native", once),
    )


def tiled_choices() -> tuple[Choice, ...]:
    """Which products with few bits are left to tiles that are made plain."""
    why = "made plain tile by tile in the last-level cache: no rounding beside that of the weights"
    if find().library is not None:
        left = "linear, few bits where a row is no whole number of groups"
        return (Choice(left, "any", 1, "tiled", why),)
    in_groups = Choice("linear, 4 and 8 bits in groups", "float32", 1, "tiled", why)
    others = ("linear, 8 bits in groups", "linear, fp8 and nf4")
    return (in_groups, *(Choice(operation, "any", 1, "tiled", why) for operation in others))


def int8_choices() -> tuple[Choice, ...]:
    """How weights of 8 bits, one scale per output, are multiplied on this CPU."""
    from engine.kernels import int8

    if int8.is_supported():
        why = "integers, exact on this CPU; activations are rounded to 8 bits a row"
        return (Choice("linear, int8", "any", 1, "onednn", why),)
    why = "this CPU's integer products are not exact or not there; activations stay as they are"
    return (Choice("linear, int8", "any", 1, "tiled", why),)


def choices() -> list[Choice]:
    """Every choice on this machine, for people to read."""
    from engine.kernels.attention_choices import attention_choices

    formats = (torch.float32, torch.bfloat16, torch.float16)
    plain = [c for dtype in formats for c in (*linear_choices(dtype), *blocked_choices(dtype))]
    attention = [c for dtype in formats for c in attention_choices(dtype)]
    native = native_choices()
    torch_s = () if find().library else (*int8_choices(), *int4_choices())
    return [*plain, *native, *torch_s, *tiled_choices(), *attention, *gpu_choices()]


def gpu_choices() -> list[Choice]:
    """The choices on each NVIDIA GPU that torch can use."""
    from engine.attention.gpu import attention_choices
    from engine.kernels.gpu import product_choices

    devices = [torch.device(gpu.device) for gpu in gpus() if not why_not(gpu)]
    attention = [c for device in devices for c in attention_choices(device)]
    return [*attention, *(c for device in devices for c in product_choices(device))]


def has_fast_16bit(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for products in `dtype` that torch uses."""
    check = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    supported: Callable[[], bool] | None = getattr(torch.ops.mkldnn, check, None)
    return bool(supported and supported())


@cache
def _linear_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    name = str(dtype).removeprefix("torch.")
    if dtype is torch.float32:
        return _float32_choices(name)
    return _16bit_choices(dtype, name)


def _float32_choices(name: str) -> tuple[Choice, ...]:
    """One decision for all products of a few rows, from two sizes together: the difference is a
    property of the library, and one decision is less easily upset by a busy moment."""
    candidates = CANDIDATES[torch.float32]
    few = [_milliseconds(candidates, torch.float32, rows) for rows in (4, 16)]
    times = {key: sum(found[key] for found in few) for key in candidates}
    reason = _measured(times, torch.get_num_threads())
    choice = Choice("linear", name, 2, faster("torch", times), reason)
    return (
        Choice("linear", name, 1, "torch", "one row: a product of matrix and vector"),
        choice,
        Choice("linear", name, MANY_ROWS, "torch", "many rows: limited by arithmetic"),
    )


def _16bit_choices(dtype: torch.dtype, name: str) -> tuple[Choice, ...]:
    """Without 16-bit instructions torch's own product costs the same for every row; converting
    the weight pays from some number of rows on. With them it can still pay for many rows. All
    candidates split alike over threads, so one thread decides: on several, a busy machine makes
    parallel regions wait, and a wrong choice here costs a factor of five.

    What was compiled here reads a weight once for a few rows; it is in doubt from some number on,
    and not taken again once something else is faster: the rows whose result does not depend on
    their number are those from 1 on."""
    result: list[Choice] = []
    candidates, chosen, in_doubt = CANDIDATES[dtype], "torch", 1
    if find().library is not None:
        why = f"few rows: compiled here, weights are read once; in doubt from {_NATIVE_DOUBT} on"
        result.append(Choice("linear", name, 1, "native", why))
        candidates, chosen, in_doubt = ("native", *candidates), "native", _NATIVE_DOUBT
    for rows in ROW_BUCKETS:
        if rows < in_doubt:
            continue
        with one_thread():
            times = _milliseconds(candidates, dtype, rows, time.thread_time)
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
    if not blocked.is_supported(dtype):
        return ()
    if _chosen(_linear_choices(dtype), 1) == "native":  # reads plain weights as fast
        return ()
    name = str(dtype).removeprefix("torch.")
    plain, inside, slower, reasons = 0.0, 0.0, False, []
    for rows in _FEW_ROWS:
        own = _chosen(_linear_choices(dtype), rows)
        times = _milliseconds((own, "onednn"), dtype, rows)
        plain, inside = plain + times[own], inside + times["onednn"]
        slower |= times["onednn"] > times[own]
        reasons.append(f"{_measured(times, torch.get_num_threads())}, rows: {rows}")
    if slower or inside > _BLOCKS_PAY * plain:
        return ()
    result = [Choice(_IN_BLOCKS, name, 1, "onednn", "; ".join(reasons))]
    if dtype is torch.float32:  # plain again would gain nothing: the arithmetic is the same
        return tuple(result)
    for rows in _MANY_ROWS_OF_BLOCKS:
        with one_thread():
            times = _milliseconds(("onednn", "unblocked"), dtype, rows, time.thread_time)
        if faster("onednn", times) == "unblocked":
            many = Choice(_IN_BLOCKS, name, rows, "unblocked", _measured(times, 1))
            return (*result, many)
    return tuple(result)


@cache
def _int4_choices() -> tuple[Choice, ...]:
    """torch's kernel for packed codes takes longer with every row; making tiles plain costs the
    same for any number. Both split over threads alike, so one thread decides."""
    from engine.kernels import int4

    if not int4.panel_size():
        return (Choice(_INT4, "bfloat16", 1, "tiled", "torch packs 4 bits in an unknown way"),)
    why = "in doubt from 16 rows on; below, packed codes are read once and as they are"
    result = [Choice(_INT4, "bfloat16", 1, "packed", why)]
    for rows in _INT4_ROWS:
        with one_thread():
            times = _int4_milliseconds(rows)
        if faster("packed", times) == "tiled":
            return (*result, Choice(_INT4, "bfloat16", rows, "tiled", _measured(times, 1)))
    return tuple(result)


def _int4_milliseconds(rows: int) -> dict[str, float]:
    from engine.kernels.int4 import Int4Weights

    size, group = _WIDTH // 2, 128
    with torch.inference_mode():
        held = [Int4Weights.random(size, size, group) for _ in range(_NUM_MATRICES)]
        x = torch.ones(rows, size, dtype=torch.bfloat16)
        shortest = dict.fromkeys(("packed", "tiled"), float("inf"))
        for turn in range(_FEWEST_TURNS + 1):
            for name in shortest:
                weights = held[turn % len(held)]
                start = time.thread_time()
                weights.by_name(name, x)
                if turn > 0:
                    seconds = time.thread_time() - start
                    shortest[name] = min(shortest[name], seconds * 1000)
    return shortest


def _chosen(table: Sequence[Choice], rows: int) -> str:
    return next(c.implementation for c in reversed(table) if c.rows <= max(rows, 1))


def faster(held: str, times: dict[str, float]) -> str:
    """The fastest, but what is chosen already stays unless the other is clearly faster."""
    fastest = min(times, key=times.__getitem__)
    if held in times and times[fastest] > _MARGIN * times[held]:
        return held
    return fastest


def _measured(times: dict[str, float], threads: int) -> str:
    found = ", ".join(f"{key} {ms:.2f} ms" for key, ms in times.items())
    return f"measured at {_WIDTH} x {_WIDTH}, threads: {threads}: {found}"


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _milliseconds(
    candidates: Sequence[str],
    dtype: torch.dtype,
    rows: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The shortest time of one product by each candidate, taking turns. What else runs on the
    machine can only lengthen a call (a busy core makes a whole parallel region wait for its time
    slice), so each is repeated often enough to meet a quiet moment. On one thread the thread's own
    clock leaves that out altogether."""
    from engine.kernels.linear import IMPLEMENTATIONS
    from engine.kernels.weights import BLOCKED_IMPLEMENTATIONS

    known = IMPLEMENTATIONS | BLOCKED_IMPLEMENTATIONS
    shortest = dict.fromkeys(candidates, float("inf"))
    turns = min(max(_ROWS_TO_MEASURE // rows, _FEWEST_TURNS), _MOST_TURNS)
    with torch.inference_mode():
        weights = [torch.ones(_WIDTH, _WIDTH, dtype=dtype) for _ in range(_NUM_MATRICES)]
        in_blocks = []
        if any(key in BLOCKED_IMPLEMENTATIONS for key in candidates):
            in_blocks = [blocked.block(weight) for weight in weights]
        x = torch.ones(rows, _WIDTH, dtype=dtype)
        for turn in range(turns):
            for key in shortest:
                held = in_blocks if key in BLOCKED_IMPLEMENTATIONS else weights
                weight = held[turn % _NUM_MATRICES]
                start = clock()
                known[key](x, weight, None)
                seconds = clock() - start
                if turn > 0:  # the first call warms up
                    shortest[key] = min(shortest[key], seconds * 1000)
    return shortest
