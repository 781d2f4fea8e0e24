"""Loads the models of all ranks and inserts the all-reduces between them.

embeddings of the rank's tokens, zeros for the others' -> sum
each layer: attention of its heads -> sum; its part of the MLP -> sum
logits of its tokens                     (concatenated by the runner)
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.interface import LayerSpec, PagedBackend
from engine.kernels.cpu.check import library
from engine.models.loader import LoadedModel, Progress
from engine.parallel.exchange import Exchange
from engine.parallel.shape import Shape, shape_of
from engine.parallel.share import Share
from engine.parallel.team import Team
from engine.runner.model_runner import probe_kv


def join(model: nn.Module, share: Share, exchange: Exchange) -> None:
    """Insert the all-reduces: from now on a pass of `model` needs the passes of all ranks."""
    for path in share.shape.sums:
        model.get_submodule(path).register_forward_hook(_Sum(share.rank, exchange))
    if share.shape.is_vocab_cut:
        _Lookup(share, exchange).put_into(model.get_input_embeddings())  # type: ignore[operator]


class _Sum:
    """All-reduces the output of a module, or the first item of its outputs."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self._rank, self._exchange = rank, exchange

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self._exchange.sum(self._rank, output[0]), *output[1:])
        return self._exchange.sum(self._rank, output)


class _Lookup:
    """Embeddings sharded by rows: each token's row is on exactly one rank."""

    def __init__(self, share: Share, exchange: Exchange) -> None:
        self._rank, self._exchange = share.rank, exchange
        self._count = share.shape.vocab_part
        self._is_elsewhere: Tensor | None = None

    def put_into(self, embedding: nn.Module) -> None:
        embedding.register_forward_pre_hook(self._before)
        embedding.register_forward_hook(self._after)

    def _before(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tokens = args[0] - self._rank * self._count
        self._is_elsewhere = (tokens < 0) | (tokens >= self._count)
        return (tokens.masked_fill(self._is_elsewhere, 0), *args[1:])

    def _after(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        assert self._is_elsewhere is not None
        output = output.masked_fill(self._is_elsewhere.unsqueeze(-1), 0)
        self._is_elsewhere = None
        return self._exchange.sum(self._rank, output)


LoadShare = Callable[[str, Share, Progress], LoadedModel]
"""device, share of its rank, progress -> the rank's model."""
MakeCache = Callable[[str, dict[int, LayerSpec]], PagedBackend]
"""device of a rank, what its layers store -> its cache."""


class Ranks:
    """The models of all ranks, in order, which compute together. layers: the KV spec of each layer
    of a rank. Call `close` when the models are no longer needed."""

    def __init__(
        self, team: Team, shape: Shape, models: list[nn.Module], layers: dict[int, LayerSpec]
    ) -> None:
        self.team, self.shape = team, shape
        self.models, self.layers = models, layers

    @property
    def size(self) -> int:
        return self.team.size

    @property
    def whole_layers(self) -> dict[int, LayerSpec]:
        """KV specs of the layers over all ranks."""
        return {
            layer: spec._replace(
                num_kv_heads=spec.num_kv_heads * self.size, num_heads=spec.num_heads * self.size
            )
            for layer, spec in self.layers.items()
        }

    def make_caches(self, make: MakeCache) -> list[PagedBackend]:
        """One cache per rank, allocated by the rank's thread."""
        return [
            self.team.call(rank, partial(make, device, self.layers))
            for rank, device in enumerate(self.team.devices)
        ]

    def close(self) -> None:
        """End the ranks' threads and free their models."""
        self.team.close()
        self.models = []


def load_ranks(
    config: Any,
    devices: tuple[str, ...],
    num_threads: int,
    load: LoadShare,
    progress: Progress,
) -> LoadedModel:
    """The model of `config` in parts, one on each of `devices`; those are loaded one after the
    other. `model` of what is returned is the first rank's. Raises as `load` does, and
    UnsupportedModelError where the model cannot be divided."""
    shape = shape_of(config, len(devices))
    team = Team(devices, num_threads, library())
    try:
        parts: list[LoadedModel] = []
        for rank, device in enumerate(devices):
            told = partial(_of_rank, progress, f"Rank {rank + 1} of {len(devices)}")
            share = Share(shape, rank)
            # as many threads as this one has now: what others keep busy is known to it
            threads = torch.get_num_threads()
            parts.append(team.call(rank, partial(load, device, share, told), threads))
        layers = team.call(0, partial(probe_kv, parts[0].model))
        for rank, part in enumerate(parts):
            join(part.model, Share(shape, rank), team.exchange)
    except BaseException:
        team.close()
        raise
    held: Counter[str] = Counter()
    for part in parts:
        held.update(part.bytes_on)
    notices = dict.fromkeys(notice for part in parts for notice in part.notices)
    return dataclasses.replace(
        parts[0],
        bytes_on=dict(held),
        notices=list(notices),
        kernels={**parts[0].kernels, "ranks": team.description},
        ranks=Ranks(team, shape, [part.model for part in parts], layers),
    )


def _of_rank(progress: Progress, name: str, stage: str, done: int, total: int) -> None:
    progress(f"{name}: {stage[:1].lower()}{stage[1:]}", done, total)
