"""Output head and embeddings in int8, a scale per token of the vocabulary.

A head that is tied to the embeddings is multiplied and looked up from one copy: chunks of rows in
oneDNN's layout, of which a chunk is made plain again to look a row up. The rows looked up last are
kept, for a text uses few tokens of its vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels import int8
from engine.kernels.cpu.weights import NativeWeights
from engine.kernels.rows8 import Int8Rows
from engine.kernels.weights import Weights
from engine.numerics.rounding import round_int8

CHUNK_ROWS = 4096
_RECENT_ROWS = 4096
_FEW_TOKENS = 64


class Int8Head(Weights):
    """[vocabulary, width] in chunks of CHUNK_ROWS rows. `chunks`: plain rows, chunk by chunk."""

    def __init__(self, chunks: Iterable[Tensor], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._packed: list[Tensor] = []
        scales: list[Tensor] = []
        rows = width = 0
        for plain in chunks:
            codes = round_int8(plain)
            self._packed.append(int8.pack(codes))
            scales.append(codes.scales.float().view(-1))
            rows, width = rows + plain.shape[0], plain.shape[1]
        self.shape = (rows, width)
        self._scales = torch.cat(scales)
        self._recent: OrderedDict[int, Tensor] = OrderedDict()

    @property
    def title(self) -> str:
        return "int8"

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] + self._scales.nbytes

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows, scales = int8.quantize_rows(x.reshape(-1, x.shape[-1]))
        parts, start = [], 0
        for packed in self._packed:
            end = start + CHUNK_ROWS
            parts.append(int8.sums(rows, packed, self._scales[start:end]))
            start = end
        result = torch.cat(parts, dim=-1).mul_(scales).to(x.dtype)
        if bias is not None:
            result += bias
        return result.view(*x.shape[:-1], self.shape[0])

    def dense(self) -> Tensor:
        plain = torch.empty(self.shape, dtype=self.dtype)
        start = 0
        for packed in self._packed:
            part = int8.unpack(packed)
            scales = self._scales[start : start + len(part)].unsqueeze(1)
            plain[start : start + len(part)] = part.float().mul_(scales)
            start += len(part)
        return plain

    def rows(self, token_ids: Tensor) -> Tensor:
        """Rows [T, width] of token_ids int64 [T], in `dtype`."""
        if len(token_ids) <= _FEW_TOKENS:
            codes = torch.stack([self._row(token) for token in token_ids.tolist()])
        else:
            codes = self._many(token_ids)
        scales = self._scales.index_select(0, token_ids).unsqueeze(1)
        return codes.float().mul_(scales).to(self.dtype)

    def _row(self, token: int) -> Tensor:
        found = self._recent.pop(token, None)
        if found is None:
            place = token % CHUNK_ROWS
            found = int8.unpack(self._packed[token // CHUNK_ROWS])[place].clone()
        self._recent[token] = found
        if len(self._recent) > _RECENT_ROWS:
            self._recent.popitem(last=False)
        return found

    def _many(self, token_ids: Tensor) -> Tensor:
        codes = torch.empty(len(token_ids), self.shape[1], dtype=torch.int8)
        chunks = token_ids // CHUNK_ROWS
        for chunk in chunks.unique().tolist():
            mine = (chunks == chunk).nonzero().view(-1)
            plain = int8.unpack(self._packed[chunk])
            codes[mine] = plain.index_select(0, token_ids[mine] - chunk * CHUNK_ROWS)
        return codes


class Int8Table:
    """Embeddings that are no head: plain int8 rows."""

    def __init__(self, chunks: Iterable[Tensor], dtype: torch.dtype) -> None:
        self.dtype = dtype
        parts = [round_int8(plain) for plain in chunks]
        self._codes = torch.cat([part.codes for part in parts])
        self._scales = torch.cat([part.scales.float().view(-1) for part in parts])

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def rows(self, token_ids: Tensor) -> Tensor:
        """As `Int8Head.rows`."""
        codes = self._codes.index_select(0, token_ids).float().sub_(128)
        return codes.mul_(self._scales.index_select(0, token_ids).unsqueeze(1)).to(self.dtype)


RowsAndProduct = Int8Head | Int8Rows | NativeWeights
"""An output head in int8 from whose one copy embeddings are looked up too."""


class HeldEmbedding(nn.Module):
    """In place of an embedding: token ids [...] -> [..., width], times what its class scales by.

    `original` stays for that scale, which is computed with the other buffers; its weight goes.
    """

    def __init__(
        self,
        original: nn.Module,
        source: RowsAndProduct | Int8Table,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self._source = source
        self.original = original
        width = original.get_parameter("weight").shape[1]
        nothing = torch.empty(0, width, device=device)
        original._parameters["weight"] = nn.Parameter(nothing, requires_grad=False)
        self.is_tied = not isinstance(source, Int8Table)

    @property
    def held_bytes(self) -> int:
        """Bytes that are not the head's already."""
        return 0 if self.is_tied else self._source.nbytes

    def rows(self, token_ids: Tensor) -> Tensor:
        """[T, width] of token_ids [T], not scaled."""
        return self._source.rows(token_ids)

    def forward(self, token_ids: Tensor) -> Tensor:
        rows = self.rows(token_ids.reshape(-1))
        scale: Tensor | None = getattr(self.original, "embed_scale", None)
        if scale is not None:
            rows = rows * scale.to(rows.dtype)
        return rows.view(*token_ids.shape, -1)


def is_plain_embedding(module: nn.Module) -> bool:
    """Whether HeldEmbedding computes what `module` does: a lookup, perhaps times a scale."""
    if type(module) is nn.Embedding:
        return module.max_norm is None
    return isinstance(module, nn.Embedding) and hasattr(module, "embed_scale")


def lookup_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The input embeddings of `model` as a function of token ids [T], without their scale."""
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    if isinstance(embedding, HeldEmbedding):
        return embedding.rows
    table: Tensor = embedding.weight.detach()
    return lambda token_ids: F.embedding(token_ids, table)
