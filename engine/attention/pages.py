"""The KV cache of one layer, and the indices by which its pages are read and written.

Layout, for K and V alike: [num_blocks, Hkv, block_size, D]. A page (block_size x D: one head in one
block) is contiguous. Gathering a request's pages head by head is therefore a plain copy, and a
batched matmul reads the result without a transpose. With [num_blocks, block_size, Hkv, D] the
matmul had to transpose keys and values itself and took five to fifteen times as long.

K and V are each stored in the model's dtype or in 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.interface import LayerSpec
from engine.hardware.mapped import mapped_zeros
from engine.kernels.paged_kv import PLAIN as PLAIN_FORM
from engine.kernels.paged_kv import PageTensors
from engine.numerics import rounding as e4m3
from engine.numerics.kv_dtype import PLAIN, KVDtype

SCALE_DTYPE = torch.bfloat16
_LEAST = 1e-30  # largest magnitude of a vector of zeros, so that nothing is divided by zero


class Format(NamedTuple):
    """An 8-bit format. name: its key in FORMATS. largest: the code of a vector's largest magnitude.
    encode: scaled elements to codes (NaN becomes any code: its scale is NaN). decode: codes to
    numbers."""

    name: str
    largest: float
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, torch.dtype], Tensor]


def _encode_fp8(scaled: Tensor) -> Tensor:
    return scaled.to(torch.float8_e4m3fn).view(torch.int8)  # saturates


FORMATS = {
    # a scale that was rounded down leaves up to 127.25, which still rounds to 127
    "int8": Format("int8", 127.0, lambda scaled: scaled.round_().to(torch.int8), Tensor.to),
    "fp8": Format("fp8", 448.0, _encode_fp8, e4m3.decode),
}


def quantize(vectors: Tensor, form: Format) -> tuple[Tensor, Tensor]:
    """Codes of vectors[..., D] and their scales [...]. NaN or infinity anywhere in a vector makes
    its scale so, and what is read of it NaN."""
    wide = vectors.to(torch.float32)
    scales = wide.abs().amax(-1).clamp_(min=_LEAST).mul_(1.0 / form.largest).to(SCALE_DTYPE)
    return form.encode(wide / scales.unsqueeze(-1)), scales


CPU = torch.device("cpu")


class Gathered(NamedTuple):
    """Keys or values of sequences: elements[B, L, D]; scales[B, 1, L] in float32 are still to be
    applied, or None.

    Scaling the matmul result (scores for keys, probabilities for values) costs less than scaling
    the elements as long as there are fewer queries than D.
    """

    elements: Tensor
    scales: Tensor | None = None

    def part(self, first: int, end: int) -> Gathered:
        """Tokens `first` to `end` of each sequence."""
        scales = None if self.scales is None else self.scales[:, :, first:end]
        return Gathered(self.elements[:, first:end], scales)

    def for_queries(self, count: int) -> Gathered:
        """The form that is cheaper to multiply with `count` query rows: unscaled, or scaled now."""
        if self.scales is None or count <= self.elements.shape[-1]:
            return self
        # gathered for this call alone, so it may be changed in place
        return Gathered(self.elements.mul_(self.scales.mT.to(self.elements.dtype)))


class Pages:
    """The pages of keys, or of values. elements[num_blocks, Hkv, block_size, D] in `dtype`; with
    `form` int8 codes, and scales[num_blocks, Hkv, block_size].

    A step also reads its own keys and values back quantized, so chunks, drafts and other requests
    in the batch do not change results. Where a key differs in the last bit of float32 in another
    batch, it may round to the neighboring code.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device = CPU,
        form: Format | None = None,
    ) -> None:  # fmt: skip
        self._form = form
        self.elements = _zeros(shape, dtype if form is None else torch.int8, device)
        self.scales = None if form is None else _zeros(shape[:3], SCALE_DTYPE, device)

    def write(self, rows: Tensor, new: Tensor) -> None:
        """Store new[T, Hkv, D] at the rows that `token_rows` gave for them."""
        width = self.elements.shape[-1]
        flat = new.reshape(-1, width)
        if self._form is None or self.scales is None:
            stored = flat.to(self.elements.dtype)
        else:
            stored, scales = quantize(flat, self._form)
            self.scales.view(-1).index_copy_(0, rows, scales)
        self.elements.view(-1, width).index_copy_(0, rows, stored)

    def gather(self, rows: Tensor, num_sequences: int, dtype: torch.dtype) -> Gathered:
        """Of the sequences that `page_rows` named, with B = num_sequences * Hkv and L the number
        of blocks of a sequence times the block size; computed with in `dtype`."""
        elements = _gather(self.elements, rows, num_sequences)
        if self._form is None or self.scales is None:
            return Gathered(elements.to(dtype))
        scales = _gather(self.scales.unsqueeze(-1), rows, num_sequences)
        return Gathered(self._form.decode(elements, dtype), scales.to(torch.float32).mT)

    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros."""
        self.elements[blocks] = 0
        if self.scales is not None:
            self.scales[blocks] = 0

    @property
    def tensors(self) -> PageTensors:
        """The pages themselves."""
        form = PLAIN_FORM if self._form is None else self._form.name
        return PageTensors(self.elements, form, self.scales)

    @property
    def num_heads(self) -> int:
        return self.elements.shape[1]

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes + (0 if self.scales is None else self.scales.nbytes)


class PagedCache(NamedTuple):
    """The pages of one layer."""

    keys: Pages
    values: Pages

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

    def pages(name: str, spec: LayerSpec, dim: int) -> Pages:
        shape = (num_blocks, spec.num_kv_heads, block_size, dim)
        return Pages(shape, dtype, device, FORMATS.get(name))

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
    """On the CPU, memory is taken from the system only when it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return mapped_zeros(shape, dtype)
