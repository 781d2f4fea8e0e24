"""The KV cache of one layer, and the indices by which its pages are read and written.

Layout, for K and V alike: [num_blocks, Hkv, block_size, D]. A page, the block_size x D tokens of
one head in one block, is one stretch of memory: gathering the pages of a request head by head is a
plain copy whose result a batched product reads as it is. With the heads inside the tokens the
product has to turn keys and values round for itself, which took five to fifteen times as long.

K and V are each in the model's precision (`PlainPages`) or in 8 bits (`QuantizedPages`).
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.attention.interface import LayerSpec
from engine.kernels.paged_kv import PageTensors
from engine.numerics import rounding as e4m3
from engine.numerics.kv_dtype import AUTO, PLAIN, KVDtype

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
    return scaled.to(torch.float8_e4m3fn).view(torch.int8)  # saturates


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


CPU = torch.device("cpu")


class Gathered(NamedTuple):
    """Keys or values of sequences: elements[B, L, D], of which each token's are still to be
    multiplied by scales[B, 1, L] (float32); None: they are what they are.

    A product with the tokens' elements costs less to scale (keys: the scores; values: the
    probabilities) than the elements themselves, as long as there are fewer queries than D.
    """

    elements: Tensor
    scales: Tensor | None = None

    def part(self, first: int, end: int) -> Gathered:
        """Tokens `first` to `end` of each."""
        scales = None if self.scales is None else self.scales[:, :, first:end]
        return Gathered(self.elements[:, first:end], scales)

    def for_queries(self, count: int) -> Gathered:
        """What is cheaper to multiply with `count` rows of queries: as it is, or scaled now."""
        if self.scales is None or count <= self.elements.shape[-1]:
            return self
        # gathered for this call alone, so nobody else sees it change
        return Gathered(self.elements.mul_(self.scales.mT.to(self.elements.dtype)))


class KVPages(Protocol):
    """The pages of keys, or of values."""

    def write(self, rows: Tensor, new: Tensor) -> None:
        """Store new[T, Hkv, D] at the rows that `token_rows` gave for them."""

    def gather(self, rows: Tensor, num_sequences: int, dtype: torch.dtype) -> Gathered:
        """Of the sequences that `page_rows` named, with B = num_sequences * Hkv and L the number
        of blocks of a sequence times the block size; computed with in `dtype`."""

    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros."""

    @property
    def tensors(self) -> PageTensors:
        """The pages themselves."""

    @property
    def num_heads(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class PlainPages:
    """elements: [num_blocks, Hkv, block_size, D]."""

    def __init__(
        self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        self.elements = _zeros(shape, dtype, device)

    def write(self, rows: Tensor, new: Tensor) -> None:
        width = self.elements.shape[-1]
        flat = new.to(self.elements.dtype).reshape(-1, width)
        self.elements.view(-1, width).index_copy_(0, rows, flat)

    def gather(self, rows: Tensor, num_sequences: int, dtype: torch.dtype) -> Gathered:
        return Gathered(_gather(self.elements, rows, num_sequences).to(dtype))

    def clear(self, blocks: list[int]) -> None:
        self.elements[blocks] = 0

    @property
    def tensors(self) -> PageTensors:
        return PageTensors(self.elements)

    @property
    def num_heads(self) -> int:
        return self.elements.shape[1]

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes


class QuantizedPages:
    """codes[num_blocks, Hkv, block_size, D] and scales[num_blocks, Hkv, block_size], as
    `quantized` describes them.

    A step reads what it wrote itself back quantized too, so that chunks, drafts and batch mates
    change nothing; but where a key of another batch differs in the last bit of float32, it may
    round to the code beside (`quantized` says why that stays).
    """

    def __init__(
        self, shape: tuple[int, int, int, int], form: Format, device: torch.device = CPU
    ) -> None:
        self.codes = _zeros(shape, torch.int8, device)
        self.scales = _zeros(shape[:3], SCALE_DTYPE, device)
        self.form = form

    def write(self, rows: Tensor, new: Tensor) -> None:
        width = self.codes.shape[-1]
        codes, scales = quantize(new.reshape(-1, width), self.form)
        self.codes.view(-1, width).index_copy_(0, rows, codes)
        self.scales.view(-1).index_copy_(0, rows, scales)

    def gather(self, rows: Tensor, num_sequences: int, dtype: torch.dtype) -> Gathered:
        codes = _gather(self.codes, rows, num_sequences)
        scales = _gather(self.scales.unsqueeze(-1), rows, num_sequences)
        return Gathered(self.form.decode(codes, dtype), scales.to(torch.float32).mT)

    def clear(self, blocks: list[int]) -> None:
        self.codes[blocks] = 0
        self.scales[blocks] = 0

    @property
    def tensors(self) -> PageTensors:
        return PageTensors(self.codes, self.form.name, self.scales)

    @property
    def num_heads(self) -> int:
        return self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


class PagedCache(NamedTuple):
    """The pages of one layer."""

    keys: KVPages
    values: KVPages

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def clear(self, blocks: list[int]) -> None:
        self.keys.clear(blocks)
        self.values.clear(blocks)


def make_caches(
    layers: Mapping[int, LayerSpec],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    kv_dtype: KVDtype = PLAIN,
    device: torch.device = CPU,
) -> dict[int, PagedCache]:
    """An empty cache for each layer; `dtype`: the model's."""

    def pages(name: str, spec: LayerSpec, dim: int) -> KVPages:
        shape = (num_blocks, spec.num_kv_heads, block_size, dim)
        if name == AUTO:
            return PlainPages(shape, dtype, device)
        return QuantizedPages(shape, FORMATS[name], device)

    return {
        layer: PagedCache(
            pages(kv_dtype.keys, spec, spec.key_dim), pages(kv_dtype.values, spec, spec.value_dim)
        )
        for layer, spec in layers.items()
    }


def page_rows(tables: Tensor, num_kv_heads: int) -> Tensor:
    """Rows of the pages of tables[B, blocks], sequence by sequence, head by head."""
    heads = torch.arange(num_kv_heads, device=tables.device).view(1, -1, 1)
    return (tables.unsqueeze(1) * num_kv_heads + heads).view(-1)


def token_rows(slots: Tensor, block_size: int, num_kv_heads: int) -> Tensor:
    """Rows of the tokens in slots[T] (block * block_size + place in it), token by token, head by
    head."""
    blocks, places = slots // block_size, slots % block_size
    heads = torch.arange(num_kv_heads, device=slots.device)
    pages = blocks.unsqueeze(1) * num_kv_heads + heads
    return (pages * block_size + places.unsqueeze(1)).view(-1)


def _gather(pages: Tensor, rows: Tensor, num_sequences: int) -> Tensor:
    """pages[num_blocks, Hkv, block_size, D] -> [num_sequences * Hkv, L, D]."""
    # index_select over flat pages is a plain copy; indexing with a tensor is many times slower
    flat = pages.view(-1, pages.shape[2] * pages.shape[3]).index_select(0, rows)
    return flat.view(num_sequences * pages.shape[1], -1, pages.shape[3])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _lazy_zeros(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory is taken from the system only when it is first written.

    A mapping of its own: the C library may hand out memory that was used before, and would have to
    write the zeros.
    """
    count = int(np.prod(shape)) * dtype.itemsize
    # Windows knows neither flag, and does the same without
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}
    try:
        memory = mmap.mmap(-1, count, **private)
    except OSError as error:
        raise MemoryError(f"{count:,} bytes: {error.strerror}") from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)
