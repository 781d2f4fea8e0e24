"""Random ragged batches over a poisoned paged cache, and what attention over them must be.

Written apart from the kernels: plain softmax in float64 over what the cache holds, token by token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from engine.attention.interface import AttentionOptions
from engine.attention.pages import FORMATS, quantize
from engine.kernels.paged_kv import PageTensors
from engine.kernels.triton.attention import Shape


@dataclass(frozen=True)
class Scene:
    """requests: (tokens computed before, tokens of this step). dims: of keys and of values. forms:
    how keys and values are stored. padding: requests that only fill the batch up."""

    requests: tuple[tuple[int, int], ...]
    block_size: int
    num_kv_heads: int
    group: int
    dims: tuple[int, int]
    forms: tuple[str, str]
    dtype: torch.dtype
    window: int | None
    softcap: float | None
    has_sinks: bool
    seed: int
    padding: int = 0
    chunk: int | None = None  # in place of the window

    @property
    def shape(self) -> Shape:
        heads = self.num_kv_heads
        return Shape(heads * self.group, heads, *self.dims, self.dtype.itemsize)


class World:
    """A scene's tensors on `device`, and the results that are expected of it."""

    def __init__(self, scene: Scene, device: torch.device) -> None:
        self.scene, self.device = scene, device
        self._generator = torch.Generator().manual_seed(scene.seed)
        lengths = [before + new for before, new in scene.requests]
        counts = [-(-length // scene.block_size) for length in lengths]
        free = torch.randperm(sum(counts) + 3, generator=self._generator).tolist()
        self.tables = [[free.pop() for _ in range(count)] for count in counts]
        self.query_lens = [new for _, new in scene.requests] + [1] * scene.padding
        self.seq_lens = lengths + [0] * scene.padding
        self.tables += [[] for _ in range(scene.padding)]
        heads = scene.num_kv_heads
        sides = []
        for dim, form in zip(scene.dims, scene.forms, strict=True):
            pages = _poisoned((sum(counts) + 3, heads, scene.block_size, dim), form, scene.dtype)
            sides.append((pages, [self._fill(pages, t, n) for t, n in self._sequences()]))
        (keys, self._k), (values, self._v) = sides
        self.keys, self.values = _moved(keys, device), _moved(values, device)
        packed = self._noise(sum(self.query_lens), heads * (scene.group + 1), scene.dims[0])
        self.q = packed.to(device)[:, : heads * scene.group]  # a view, as of a packed product
        sinks = self._noise(heads * scene.group) if scene.has_sinks else None
        self.options = AttentionOptions(
            scene.dims[0] ** -0.5, None if scene.chunk else scene.window, scene.softcap,
            None if sinks is None else sinks.to(device), scene.chunk,
        )  # fmt: skip

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.scene.dtype)

    def _sequences(self) -> list[tuple[list[int], int]]:
        return list(zip(self.tables, self.seq_lens, strict=True))

    def _fill(self, pages: PageTensors, table: list[int], length: int) -> Tensor:
        """Put a random sequence into the cache: what is read of it, [length, Hkv, D]."""
        block_size = self.scene.block_size
        new = self._noise(length, *pages.elements.shape[1::2])
        stored = new
        if pages.scales is not None and length:
            stored, scales = quantize(new, FORMATS[pages.form])
            new = FORMATS[pages.form].decode(stored, torch.float32) * scales.unsqueeze(-1).float()
        for position in range(length):
            block, place = table[position // block_size], position % block_size
            pages.elements[block, :, place] = stored[position]
            if pages.scales is not None:
                pages.scales[block, :, place] = scales[position]
        return new.double()

    def step_tables(self) -> Any:
        starts = [0]
        for count in self.query_lens:
            starts.append(starts[-1] + count)
        width = max(map(len, self.tables)) + 3
        rows = [[*table, *[2**30] * (width - len(table))] for table in self.tables]

        def ints(numbers: list[Any]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=self.device)

        return SimpleNamespace(
            query_start_loc=ints(starts), seq_lens=ints(self.seq_lens),
            block_tables=ints(rows).view(-1), stride=ints([width]), capacity=len(rows) + 2,
        )  # fmt: skip

    def expected(self) -> Tensor:
        """[T, Hq, Dv] in float64."""
        scene, options = self.scene, self.options
        parts, start = [], 0
        for i, tokens in enumerate(self.query_lens):
            q = self.q[start : start + tokens].double().cpu()
            start += tokens
            if self.seq_lens[i] == 0:
                parts.append(torch.zeros(tokens, q.shape[1], scene.dims[1], dtype=torch.float64))
                continue
            for t in range(tokens):
                end = self.seq_lens[i] - tokens + t + 1
                begin = 0 if options.window is None else max(0, end - options.window)
                if options.chunk is not None:
                    begin = (end - 1) // options.chunk * options.chunk
                k = self._k[i][begin:end].repeat_interleave(scene.group, 1)
                v = self._v[i][begin:end].repeat_interleave(scene.group, 1)
                scores = torch.einsum("hd,lhd->hl", q[t], k) * options.scaling
                if options.softcap is not None:
                    scores = options.softcap * torch.tanh(scores / options.softcap)
                if options.sinks is not None:
                    sinks = options.sinks.double().cpu().unsqueeze(1)
                    scores = torch.cat([scores, sinks], dim=1)
                weights = scores.softmax(-1)[:, : end - begin]
                parts.append(torch.einsum("hl,lhd->hd", weights, v).unsqueeze(0))
        return torch.cat(parts)

    def error(self, found: Tensor) -> float:
        """Largest relative distance (2-norm) of a head's result; NaN where one is."""
        wanted = self.expected()
        distance = (found.double().cpu() - wanted).norm(dim=-1)
        return float((distance / wanted.norm(dim=-1).clamp_min(0.1)).max())


def _poisoned(shape: tuple[int, int, int, int], form: str, dtype: torch.dtype) -> PageTensors:
    """Pages as another request, or nobody, left them."""
    if form == "plain":
        return PageTensors(torch.full(shape, math.nan, dtype=dtype))
    scales = torch.full(shape[:3], math.nan, dtype=torch.bfloat16)
    return PageTensors(torch.full(shape, 99, dtype=torch.int8), form, scales)


def _moved(stored: PageTensors, device: torch.device) -> PageTensors:
    scales = None if stored.scales is None else stored.scales.to(device)
    return PageTensors(stored.elements.to(device), stored.form, scales)
