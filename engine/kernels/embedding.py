"""Embeddings whose rows are packed: int8 with a scale per token, or bfloat16 in 12 bits.

An output head that is tied to the embeddings shares one copy with them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.compressed import CompressedWeights
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.per_channel import Int8PerChannel
from engine.kernels.tiled import GroupedWeights

CHUNK_ROWS = 4096
"""Rows of a head that are read and rounded at a time."""

Int8Rows = Int8PerChannel | IntegerWeights | GroupedWeights
"""int8 per output: an output head, embeddings, or both."""


class PackedEmbedding(nn.Module):
    """Replaces an embedding: token ids [...] -> [..., width], times the scale of its class.

    `original` stays for that scale, which is computed with the other buffers; its weight is freed.
    is_tied: `source` is the output head too.
    """

    def __init__(
        self,
        original: nn.Module,
        source: Int8Rows | CompressedWeights,
        device: torch.device | str = "cpu",
        *,
        is_tied: bool,
    ) -> None:
        super().__init__()
        self._source = source
        self.original = original
        width = original.get_parameter("weight").shape[1]
        nothing = torch.empty(0, width, dtype=source.dtype, device=device)
        original._parameters["weight"] = nn.Parameter(nothing, requires_grad=False)
        self.is_tied = is_tied

    @property
    def weight(self) -> Tensor:
        """Of the device and dtype that some models ask for; it has no rows."""
        return self.original.get_parameter("weight")

    @property
    def packed_bytes(self) -> int:
        """Bytes that are not part of the head."""
        return 0 if self.is_tied else self._source.nbytes

    def rows(self, token_ids: Tensor) -> Tensor:
        """[T, width] of token_ids [T], not scaled."""
        return self._source.rows(token_ids)

    def forward(self, token_ids: Tensor) -> Tensor:
        rows = self.rows(token_ids.reshape(-1))
        scale: Tensor | float | None = getattr(self.original, "embed_scale", None)
        if scale is not None:
            rows = rows * (scale.to(rows.dtype) if isinstance(scale, Tensor) else scale)
        return rows.view(*token_ids.shape, -1)


def is_plain_embedding(module: nn.Module) -> bool:
    """Whether PackedEmbedding computes what `module` does: a lookup, perhaps times a scale."""
    if type(module) is nn.Embedding:
        return module.max_norm is None
    return isinstance(module, nn.Embedding) and hasattr(module, "embed_scale")


def lookup_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The input embeddings of `model` as a function of token ids [T], without their scale."""
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    if isinstance(embedding, PackedEmbedding):
        return embedding.rows
    table: Tensor = embedding.weight.detach()
    return lambda token_ids: F.embedding(token_ids, table)
