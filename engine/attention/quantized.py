"""Keys and values in 8 bits, with a scale for each token and head.

    codes    [num_blocks, Hkv, block_size, D]   int8; of fp8 the bits of float8_e4m3fn
    scales   [num_blocks, Hkv, block_size]      bfloat16

    element = code * scale;  scale = largest magnitude of the vector / 127 (int8) or / 448 (fp8)

A page of codes is one stretch of memory as a plain page is, and so is its row of scales: gathering
stays a copy. A scale made for each vector when it is written needs no calibration, and no outlier
of another token or head coarsens it; one fixed scale of 1.0 can ruin a model.

The scales are bfloat16 because it has float32's range: no key is too large or too small for it,
where float16 ends at 65,504 and below 6e-5 loses digits. That it has few digits costs nothing, for
codes are made with the scale as it is stored.

How a vector is rounded does not depend on the batch, but what comes here does: a matrix product of
one row sums in another order than one of many, so that a key differs in the last bits of float32
from chunk to chunk, and an element beside the edge between two codes rounds to the other one, 6 %
away. A coarser grid first (bfloat16) does not remove that: its own edges are as sharp, and those
next to an edge of the codes decide as before. Summing the keys alone in a fixed order does not
either: the states that they are made of came through every product and every attention of the
layers before. All of these would need an order that no batch changes, which is one row at a time:
every weight read once for each token of a prompt. So how a prompt was cut may, rarely, change a
reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels import e4m3

SCALE_DTYPE = torch.bfloat16
_LEAST = 1e-30  # largest magnitude of a vector of zeros, so that nothing is divided by zero


class Format(NamedTuple):
    """How elements become codes. name: its key in FORMATS. largest: the code of a vector's largest
    magnitude. encode: codes of elements within it (NaN stays anything: its scale is NaN). decode:
    codes as numbers."""

    name: str
    largest: float
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, torch.dtype], Tensor]


def _encode_int8(scaled: Tensor) -> Tensor:
    # a scale that was rounded down leaves up to 127.25, which still rounds to 127
    return scaled.round_().to(torch.int8)


def _decode_int8(codes: Tensor, dtype: torch.dtype) -> Tensor:
    return codes.to(dtype)


def _encode_fp8(scaled: Tensor) -> Tensor:
    # torch 2.11 makes NaN of what later versions saturate
    return scaled.clamp_(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.int8)


FORMATS = {
    form.name: form
    for form in (
        Format("int8", 127.0, _encode_int8, _decode_int8),
        Format("fp8", 448.0, _encode_fp8, e4m3.decode),
    )
}


def quantize(vectors: Tensor, form: Format) -> tuple[Tensor, Tensor]:
    """Codes of vectors[..., D] and their scales [...]. NaN or infinity anywhere in a vector makes
    its scale so, and what is read of it NaN."""
    wide = vectors.to(torch.float32)
    scales = wide.abs().amax(-1).clamp_(min=_LEAST).mul_(1.0 / form.largest).to(SCALE_DTYPE)
    return form.encode(wide / scales.unsqueeze(-1)), scales
