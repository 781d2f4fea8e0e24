"""Output head and embeddings in int8, rounded chunk by chunk while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.device_map import DeviceMap
from engine.devices import make_current
from engine.kernels import int8
from engine.kernels.int8_rows import (
    CHUNK_ROWS,
    HeldEmbedding,
    Int8Head,
    Int8Table,
    RowsAndProduct,
    is_plain_embedding,
)
from engine.kernels.linear import Linear
from engine.kernels.native.library import library
from engine.kernels.native.weights import NativeWeights
from engine.kernels.rows8 import Int8Rows
from engine.kernels.select import uses_triton
from engine.loading.safetensors_file import TensorInfo

_CPU = DeviceMap("cpu")

Chunks = Callable[[str], Iterator[Tensor]]
"""name -> plain rows of that weight, CHUNK_ROWS at a time."""


@dataclass(frozen=True)
class Head:
    """Names of both weights on disk, and the modules that get them."""

    head: Linear
    head_name: str
    embedding: nn.Module
    embedding_name: str

    def names(self, tied: Mapping[str, str]) -> set[str]:
        """The weights to read: one of the two where they are tied."""
        return {self.head_name, self.embedding_name} - set(tied)


def find_head(model: nn.Module, device_map: DeviceMap = _CPU) -> Head | str:
    """Head and embeddings of a model; or why they cannot be held in int8 where they are."""
    device = torch.device(device_map.last)
    if device.type == "cpu" and library() is None and not int8.is_supported():
        return "this CPU's integer products are not exact"
    if device.type != "cpu" and not uses_triton(device):
        return "without Triton there are no integer products on a GPU"
    head = model.get_output_embeddings()  # type: ignore[operator]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    paths = {id(module): path for path, module in model.named_modules()}
    if not isinstance(head, Linear) or not is_plain_embedding(embedding):
        return f"{type(embedding).__name__} or its head is more than a lookup and a product"
    return Head(
        head, f"{paths[id(head)]}.weight", embedding, f"{paths[id(embedding)]}.weight"
    )


def hold_head(
    model: nn.Module,
    found: Head,
    tied: Mapping[str, str],
    chunks: Chunks,
    dtype: torch.dtype,
    device_map: DeviceMap = _CPU,
) -> None:
    """Both are one where they are tied, unless they are on two devices."""
    device = torch.device(device_map.of(found.head_name))
    make_current(str(device))
    lookup_device = torch.device(device_map.of(found.embedding_name))
    is_tied = bool({found.head_name, found.embedding_name} & set(tied))
    (head_name,) = found.names(tied) if is_tied else (found.head_name,)
    held = _held(found.head, chunks(head_name), dtype, device)
    found.head.hold(held)
    source: RowsAndProduct | Int8Table = held
    if not is_tied or lookup_device != device:
        rows = chunks(head_name if is_tied else found.embedding_name)
        source = Int8Table((plain.to(lookup_device) for plain in rows), dtype)
    embedding = HeldEmbedding(found.embedding, source, lookup_device)
    model.set_input_embeddings(embedding)  # type: ignore[operator]


def _held(
    head: Linear, chunks: Iterator[Tensor], dtype: torch.dtype, device: torch.device
) -> RowsAndProduct:
    if uses_triton(device):
        return Int8Rows.from_chunks(chunks, dtype, device)
    native, shape = library(), (head.out_features, head.in_features)
    if native is not None and shape[1] % 4 == 0:
        return NativeWeights.int8_rows(shape, chunks, dtype, native)
    return Int8Head(chunks, dtype)


def rows_of(info: TensorInfo) -> Iterator[TensorInfo]:
    """A matrix on disk as pieces of CHUNK_ROWS rows."""
    count = info.shape[0]
    row_bytes = info.nbytes // count
    for start in range(0, count, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, count - start)
        yield info._replace(
            shape=(rows, *info.shape[1:]),
            nbytes=rows * row_bytes,
            offset=info.offset + start * row_bytes,
        )
