"""Which implementation computes attention, and in which dtype: measured where in doubt."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from engine.attention import gpu
from engine.attention.rows import FEW_QUERIES
from engine.hardware.devices import gpus, why_not
from engine.hardware.machine import has_fast_16bit
from engine.kernels.cpu.attention import NativeCache, NativeStep
from engine.kernels.cpu.check import find
from engine.kernels.measure import (
    Choice,
    dtype_name,
    faster,
    one_at_a_time,
    one_thread,
    shortest_ms,
    times_text,
)
from engine.kernels.paged_kv import PageTensors

NATIVE, TILES = "native", "tiles"
_COMPILED = (NATIVE, TILES)

_IN_DOUBT = 8
"""Tokens. Below, code compiled here reads the pages once and is the fastest whatever the format;
from here on tiles gain more than arranging the pages costs, where a processor has them (4 to 10
tokens with 2 or 4 query heads to a KV head)."""

_OPERATION = "attention"
_HEADS, _ROWS, _KEYS, _WIDTH = 4, 128, 512, 128  # of a prompt that is measured
_BLOCK_SIZE = 16
_TURNS = 4  # the first is not counted


def attention_dtype(dtype: torch.dtype, rows: int) -> torch.dtype:
    """The dtype in which torch computes attention for `rows` tokens of one request."""
    if dtype is torch.float32:
        return dtype
    if not has_fast_16bit("bfloat16"):
        return torch.float32
    if rows < FEW_QUERIES:  # one row reads keys and values once, as they are
        return dtype
    with one_at_a_time:
        times = {name: ms for name, ms in _milliseconds(dtype).items() if name not in _COMPILED}
    found: torch.dtype = getattr(torch, faster(dtype_name(dtype), times))
    return found


def native_limit(dtype: torch.dtype) -> int:
    """Compiled code attends for requests with fewer tokens than this in a step; 0: for none."""
    if find().library is None:
        return 0
    with one_at_a_time:
        fastest = faster(NATIVE, _milliseconds(dtype))
    return sys.maxsize if fastest == NATIVE else _IN_DOUBT


def in_tiles(dtype: torch.dtype) -> bool:
    """Whether compiled code attends in tiles for the requests with more tokens."""
    if find().library is None:
        return False
    with one_at_a_time:
        return faster(NATIVE, _milliseconds(dtype)) == TILES


def choices() -> list[Choice]:
    """Every choice on this machine, for people."""
    formats = (torch.float32, torch.bfloat16, torch.float16)
    devices = [torch.device(one.device) for one in gpus() if not why_not(one)]
    on_gpus = [choice for device in devices for choice in gpu.attention_choices(device)]
    return [*(choice for dtype in formats for choice in cpu_choices(dtype)), *on_gpus]


def cpu_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices for people: from 1 token of a request on, and for prompts."""
    name, limit = dtype_name(dtype), native_limit(dtype)
    with one_at_a_time:
        times = _milliseconds(dtype)
    few, many = (dtype_name(attention_dtype(dtype, rows)) for rows in (1, FEW_QUERIES))
    measured = f"{_ROWS} queries, {_KEYS} keys, {_HEADS} heads, 1 thread: {times_text(times)}"
    if limit:
        why = (
            "compiled: reads KV blocks once, in place; accumulates in float32; "
            "batch-invariant (head sizes: multiples of 16)"
        )
        if limit == sys.maxsize:
            return (Choice(_OPERATION, name, 1, NATIVE, f"{why}; {measured}"),)
        native = Choice(_OPERATION, name, 1, NATIVE, why)
        if in_tiles(dtype):
            return (native, Choice(_OPERATION, name, limit, TILES, f"in tiles; {measured}"))
        if few == many:
            return (native, Choice(_OPERATION, name, limit, many, measured))
        return (
            native,
            Choice(_OPERATION, name, limit, few, "few queries: no speed-up from converting keys"),
            Choice(_OPERATION, name, FEW_QUERIES, many, measured),
        )
    if few == many:
        why = "model dtype" if few == name else "no fast 16-bit matmul on this CPU"
        return (Choice(_OPERATION, name, 1, few, why),)
    why = "one row: reads keys and values once, without conversion"
    return (
        Choice(_OPERATION, name, 1, few, why),
        Choice(_OPERATION, name, FEW_QUERIES, many, measured),
    )


@cache
def _milliseconds(dtype: torch.dtype) -> dict[str, float]:
    """The times of a prompt's attention by every candidate. It is compute-bound; float32 may be
    faster than 16 bits."""
    formats = [torch.float32]
    if dtype is not torch.float32 and has_fast_16bit("bfloat16"):
        formats.insert(0, dtype)
    with torch.inference_mode(), one_thread():
        calls = {dtype_name(one): _by_torch(dtype, one) for one in formats}
        if (compiled := find().library) is not None:
            calls[NATIVE] = _by_native(dtype)
            if compiled.has_tiles and dtype is torch.bfloat16:
                calls[TILES] = _by_native(dtype, in_tiles=True)
        return shortest_ms(calls, _TURNS, time.thread_time)


def _by_torch(dtype: torch.dtype, computed: torch.dtype) -> Callable[[int], object]:
    """Without gathering, which costs the same for any number of tokens."""
    keys = torch.ones(_HEADS, _KEYS, _WIDTH, dtype=dtype)
    queries = torch.ones(_HEADS, _ROWS, _WIDTH, dtype=dtype)

    def attend(turn: int) -> object:
        held = keys.to(computed)
        scores = torch.bmm(queries.to(computed), held.transpose(1, 2))
        return torch.bmm(F.softmax(scores, dim=-1), held)

    return attend


def _by_native(dtype: torch.dtype, in_tiles: bool = False) -> Callable[[int], object]:
    library = find().library
    assert library is not None
    pages = PageTensors(torch.ones(_KEYS // _BLOCK_SIZE, _HEADS, _BLOCK_SIZE, _WIDTH, dtype=dtype))
    cache = NativeCache(library, pages, pages)
    step = NativeStep([0], [_ROWS], [_KEYS], [range(_KEYS // _BLOCK_SIZE)])
    queries = torch.ones(_ROWS, _HEADS, _WIDTH, dtype=dtype)
    output = torch.empty_like(queries)
    return lambda turn: cache.attend(step, queries, output, 1.0, in_tiles=in_tiles)
