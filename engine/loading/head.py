"""Output head and embeddings in int8, rounded chunk by chunk while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.kernels import int8
from engine.kernels.int8_rows import (
    CHUNK_ROWS,
    HeldEmbedding,
    Int8Head,
    Int8Table,
    is_plain_embedding,
)
from engine.kernels.linear import Linear
from engine.loading.safetensors_file import TensorInfo

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


def find_head(model: nn.Module) -> Head | str:
    """Head and embeddings of a model; or why they cannot be held in int8."""
    if not int8.is_supported():
        return "this CPU's integer products are not exact"
    head = model.get_output_embeddings()  # type: ignore[operator]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    paths = {id(module): path for path, module in model.named_modules()}
    if not isinstance(head, Linear) or not is_plain_embedding(embedding):
        return f"{type(embedding).__name__} or its head is more than a lookup and a product"
    return Head(
        head, f"{paths[id(head)]}.weight", embedding, f"{paths[id(embedding)]}.weight"
    )


def hold_head(
    model: nn.Module, found: Head, tied: Mapping[str, str], chunks: Chunks, dtype: torch.dtype
) -> None:
    is_tied = bool({found.head_name, found.embedding_name} & set(tied))
    (name,) = found.names(tied) if is_tied else (found.head_name,)
    held = Int8Head(chunks(name), dtype)
    found.head.hold(held)
    source = held if is_tied else Int8Table(chunks(found.embedding_name), dtype)
    model.set_input_embeddings(HeldEmbedding(found.embedding, source))  # type: ignore[operator]


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
