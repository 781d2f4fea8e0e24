"""How attention is computed on the CPU, and in which number format: measured where in doubt."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from engine.kernels.cpu.attention import NativeCache, NativeStep
from engine.kernels.cpu.library import find
from engine.kernels.registry import Choice, faster, has_fast_16bit, one_at_a_time, one_thread
from engine.kernels.stored_pages import Stored

NATIVE = "native"

FEW_QUERIES = 32
"""From so many tokens of one request on its attention is limited by arithmetic."""

_IN_DOUBT = 8
"""Tokens. Below, code compiled here reads the pages once and is the fastest whatever the format;
from here on products of 16 bits gain more than gathering the pages costs, where a processor has
them (4 to 10 tokens with 2 or 4 query heads to a KV head)."""

_OPERATION = "attention"
_HEADS, _ROWS, _KEYS, _WIDTH = 4, 128, 512, 128  # of a prompt that is measured
_BLOCK_SIZE = 16
_TURNS = 4  # the first is not counted


def attention_dtype(dtype: torch.dtype, rows: int) -> torch.dtype:
    """What torch computes the attention of `rows` tokens of one request in."""
    if dtype is torch.float32:
        return dtype
    if not has_fast_16bit(torch.bfloat16):
        return torch.float32
    if rows < FEW_QUERIES:  # one row reads keys and values once, as they are
        return dtype
    with one_at_a_time:
        times = {name: ms for name, ms in _milliseconds(dtype).items() if name != NATIVE}
    found: torch.dtype = getattr(torch, faster(_name(dtype), times))
    return found


def native_limit(dtype: torch.dtype) -> int:
    """Requests that compute fewer tokens than this in a step are attended by code that was compiled
    here; 0: none, for there is none."""
    if find().library is None:
        return 0
    with one_at_a_time:
        fastest = faster(NATIVE, _milliseconds(dtype))
    return sys.maxsize if fastest == NATIVE else _IN_DOUBT


def attention_choices(dtype: torch.dtype) -> tuple[Choice, ...]:
    """The choices, for people to read: from 1 token of a request on, and for prompts."""
    name, limit = _name(dtype), native_limit(dtype)
    with one_at_a_time:
        times = _milliseconds(dtype)
    few, many = (_name(attention_dtype(dtype, rows)) for rows in (1, FEW_QUERIES))
    found = ", ".join(f"{key} {ms:.2f} ms" for key, ms in times.items())
    measured = f"{_ROWS} queries and {_KEYS} keys of {_HEADS} heads, threads: 1: {found}"
    if limit:
        why = (
            "compiled here: pages are read once, where they lie, float32 inside; a token's result "
            "depends on no other (heads of whole multiples of 16)"
        )
        if limit == sys.maxsize:
            return (Choice(_OPERATION, name, 1, NATIVE, f"{why}; {measured}"),)
        native = Choice(_OPERATION, name, 1, NATIVE, why)
        if few == many:
            return (native, Choice(_OPERATION, name, limit, many, measured))
        return (
            native,
            Choice(_OPERATION, name, limit, few, "few rows are not worth converting the keys"),
            Choice(_OPERATION, name, FEW_QUERIES, many, measured),
        )
    if few == many:
        why = "the model's own" if few == name else "no 16-bit products on this CPU"
        return (Choice(_OPERATION, name, 1, few, why),)
    why = "one row reads keys and values once, as they are"
    return (
        Choice(_OPERATION, name, 1, few, why),
        Choice(_OPERATION, name, FEW_QUERIES, many, measured),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _milliseconds(dtype: torch.dtype) -> dict[str, float]:
    """The attention of a prompt by everything that may compute it. It is limited by arithmetic, in
    which float32 may be faster than 16 bits."""
    formats = [torch.float32]
    if dtype is not torch.float32 and has_fast_16bit(torch.bfloat16):
        formats.insert(0, dtype)
    with torch.inference_mode(), one_thread():
        run = {_name(one): _by_torch(dtype, one) for one in formats}
        if find().library is not None:
            run[NATIVE] = _by_native(dtype)
        shortest = dict.fromkeys(run, float("inf"))
        for turn in range(_TURNS):
            for name, attend in run.items():
                start = time.thread_time()
                attend()
                if turn > 0:
                    shortest[name] = min(shortest[name], (time.thread_time() - start) * 1000)
    return shortest


def _by_torch(dtype: torch.dtype, computed: torch.dtype) -> Callable[[], object]:
    """Without gathering, which costs the same for any number of tokens."""
    keys = torch.ones(_HEADS, _KEYS, _WIDTH, dtype=dtype)
    queries = torch.ones(_HEADS, _ROWS, _WIDTH, dtype=dtype)

    def attend() -> object:
        held = keys.to(computed)
        scores = torch.bmm(queries.to(computed), held.transpose(1, 2))
        return torch.bmm(F.softmax(scores, dim=-1), held)

    return attend


def _by_native(dtype: torch.dtype) -> Callable[[], object]:
    library = find().library
    assert library is not None
    pages = Stored(torch.ones(_KEYS // _BLOCK_SIZE, _HEADS, _BLOCK_SIZE, _WIDTH, dtype=dtype))
    cache = NativeCache(library, pages, pages)
    step = NativeStep([0], [_ROWS], [_KEYS], [range(_KEYS // _BLOCK_SIZE)])
    queries = torch.ones(_ROWS, _HEADS, _WIDTH, dtype=dtype)
    output = torch.empty_like(queries)
    return lambda: cache.attend(step, queries, output, 1.0)
