"""Runs a step on all ranks at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.interface import AttentionOptions, PagedBackend
from engine.batch.batch import Batch
from engine.parallel.ranks import Ranks
from engine.runner.cuda_graphs import Taps
from engine.runner.model_runner import ModelRunner


class ParallelCache:
    """The caches of all ranks as one: each has its heads' part of every block, so block ids and
    tables are shared. devices: of the ranks."""

    def __init__(self, caches: Sequence[PagedBackend], devices: Sequence[str]) -> None:
        self.caches, self._devices = list(caches), tuple(devices)
        self._first = [
            cache for cache, device in zip(caches, devices, strict=True) if device == devices[0]
        ]
        self.description: str = getattr(caches[0], "description", "")

    @property
    def nbytes(self) -> int:
        """On the device of the first rank."""
        return sum(cache.nbytes for cache in self._first)

    @property
    def bytes_on(self) -> dict[str, int]:
        found = dict.fromkeys(self._devices, 0)
        for cache, device in zip(self.caches, self._devices, strict=True):
            found[device] += cache.nbytes
        return found

    @property
    def workspace_bytes(self) -> int:
        """What is taken on it beside the cache."""
        return sum(getattr(cache, "workspace_bytes", 0) for cache in self._first)

    def clear_blocks(self, blocks: list[int]) -> None:
        for cache in self.caches:
            cache.clear_blocks(blocks)

    def begin_step(self, batch: Batch) -> None:
        raise RuntimeError("each rank begins a step by itself")

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        raise RuntimeError("each rank has its own keys and values")

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        raise RuntimeError("each rank has its own keys and values")

    def attend(self, layer: int, q: Tensor, options: AttentionOptions) -> Tensor:
        raise RuntimeError("each rank has its own keys and values")


class ParallelRunner(ModelRunner):
    """Runs a step on all ranks, launched kernel by kernel: the all-reduces cannot be captured. On
    the CPU the ranks share the caller's threads."""

    def __init__(self, ranks: Ranks, cache: ParallelCache) -> None:
        devices = ranks.team.devices
        super().__init__(ranks.models[0], cache, devices[0])
        self._ranks: Ranks | None = ranks
        self._runners = [
            ModelRunner(model, own, device)
            for model, own, device in zip(ranks.models, cache.caches, devices, strict=True)
        ]

    def capture(
        self,
        sizes: Sequence[int],
        block_size: int,
        num_blocks: int = 0,
        taps: Taps | None = None,
    ) -> None:
        """Captures nothing."""

    def drop_cache(self) -> None:
        super().drop_cache()
        for runner in self._runners:
            runner.drop_cache()

    def drop(self) -> None:
        super().drop()
        self._runners = []
        self._ranks = None

    @torch.inference_mode()
    def execute_eagerly(self, batch: Batch, drawn: Tensor | None = None) -> Tensor:
        ranks, cache = self._ranks, self.backend
        assert ranks is not None and isinstance(cache, ParallelCache), "dropped"
        for runner, own in zip(self._runners, cache.caches, strict=True):
            runner.backend = own
        team, shape = ranks.team, ranks.shape
        if self.device.type == "cpu":
            team.set_threads(torch.get_num_threads())

        def part(rank: int) -> Tensor:
            runner = self._runners[rank]
            own = None if drawn is None else drawn.to(runner.device, non_blocking=True)
            return runner.execute_eagerly(batch, own)

        parts = team.together(part)
        # on GPUs the host does not wait for its launches, so there is nothing to measure
        self.exchange_s = team.exchange.waited[0] if self.device.type == "cpu" else 0.0
        team.exchange.waited = [0.0] * team.size
        if not shape.is_vocab_cut:
            return parts[0]
        widths = [
            max(0, min(shape.vocab_part, shape.vocab_size - rank * shape.vocab_part))
            for rank in range(team.size)
        ]
        return torch.cat(
            [
                logits[:, :width].to(self.device, non_blocking=True)
                for logits, width in zip(parts, widths, strict=True)
            ],
            dim=-1,
        )
