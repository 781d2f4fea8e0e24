"""Buffers that a thread uses again: a fresh large one costs page faults in every step."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

_held = threading.local()


def scratch(name: str, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`size` elements under a name, until this thread asks for that name again."""
    key = f"{name} {dtype}"
    found: torch.Tensor | None = getattr(_held, key, None)
    if found is None or found.numel() < size:
        # not an inference tensor, so that it can be written inside and outside inference mode
        with torch.inference_mode(False):
            found = torch.empty(size, dtype=dtype)
        setattr(_held, key, found)
    return found[:size]


Fill = Callable[[Tensor, int], object]

# MKL computes W @ x^T for a number of rows between its tile sizes much slower than for the next
# of them: on an AVX2 machine (3072 x 1024) 15 rows take 2.6 ms and 16 take 1.2, 63 take 4.5 and 64
# take 3.0. From _NARROW rows on they are filled up to _LEAST, and from there to multiples of _STEP.
_NARROW, _LEAST, _STEP, _WIDE = 7, 16, 8, 256
TILE_BYTES = 4 * 1024 * 1024  # of float32: stays in the last-level cache
WIDE_TILE_BYTES = 8 * 1024 * 1024
STRIPE_BYTES = 64 * 1024 * 1024  # of float32, on a GPU: enough rows to keep it busy


def few_rows(x: Tensor, fill: Fill, outputs: int, bias: Tensor | None) -> Tensor:
    """x [..., in] times the weight's transpose, the other way round (W @ x^T), which is faster for
    the few rows of decoding. Accumulates in float32; the result is in x's dtype."""
    num_rows = x.numel() // x.shape[-1]
    flat = widened(x.reshape(-1, x.shape[-1]).float())
    rows, width = flat.shape
    tile_rows = max(1, min(outputs, TILE_BYTES // (4 * width)))
    tile = scratch("tile", tile_rows * width).view(tile_rows, width)
    # transposed, so that each tile writes a contiguous part
    product = scratch("product", outputs * rows).view(outputs, rows)
    columns = flat.t()
    for start in range(0, outputs, tile_rows):
        count = min(tile_rows, outputs - start)
        fill(tile[:count], start)
        torch.mm(tile[:count], columns, out=product[start : start + count])
    if bias is not None:
        product += bias.unsqueeze(1)
    result = torch.empty(num_rows, outputs, dtype=x.dtype, device=x.device)
    result.copy_(product.t()[:num_rows])
    return result.view(*x.shape[:-1], outputs)


def many_rows(x: Tensor, fill: Fill, outputs: int, bias: Tensor | None) -> Tensor:
    """`few_rows` for many, as a prompt has: x @ W^T, so that no result is turned round."""
    flat = x.reshape(-1, x.shape[-1]).float()
    rows, width = flat.shape
    tile_rows = max(1, min(outputs, WIDE_TILE_BYTES // (4 * width)))
    tile = scratch("tile", tile_rows * width).view(tile_rows, width)
    product = scratch("product", rows * tile_rows)
    result = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    for start in range(0, outputs, tile_rows):
        count = min(tile_rows, outputs - start)
        fill(tile[:count], start)
        part = product[: rows * count].view(rows, count)
        torch.mm(flat, tile[:count].t(), out=part)
        if bias is not None:
            part += bias[start : start + count]
        result[:, start : start + count].copy_(part)
    return result.view(*x.shape[:-1], outputs)


def in_stripes(x: Tensor, fill: Fill, outputs: int, bias: Tensor | None) -> Tensor:
    """x [..., in] times the weight's transpose on a GPU, in its dtype. Buffers are fresh in each
    call: torch keeps the memory, and a captured graph needs them to be its own."""
    width = x.shape[-1]
    flat = x.reshape(-1, width)
    at_once = max(1, min(outputs, STRIPE_BYTES // (4 * width)))
    tile = x.new_empty(at_once, width, dtype=torch.float32)
    result = x.new_empty(len(flat), outputs)
    for start in range(0, outputs, at_once):
        end = min(start + at_once, outputs)
        fill(tile[: end - start], start)
        plain = tile[: end - start].to(x.dtype).t()
        if bias is None:
            torch.mm(flat, plain, out=result[:, start:end])
        else:
            torch.addmm(bias[start:end], flat, plain, out=result[:, start:end])
    return result.view(*x.shape[:-1], outputs)


def widened(rows: Tensor) -> Tensor:
    """`rows` with rows of zeros below where a few more rows are faster."""
    count, width = rows.shape
    wanted = max(_LEAST, -(-count // _STEP) * _STEP)
    if count == wanted or not _NARROW <= count <= _WIDE:
        return rows
    wide = rows.new_zeros(wanted, width)
    wide[:count] = rows
    return wide
