"""Runs the model once over all tokens of a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.attention.interface import (
    AttentionBackend,
    AttentionOptions,
    KVProbe,
    LayerSpec,
    active,
)
from engine.batch import Batch


class ModelRunner:
    """One rank's model and KV cache. Scheduler and block pool know nothing of either."""

    def __init__(self, model: nn.Module, backend: AttentionBackend) -> None:
        self.model = model
        self.backend = backend

    def drop_cache(self) -> None:
        self.backend = _NO_CACHE

    def drop(self) -> None:
        """Let go of model and cache; the runner cannot execute any more."""
        self.model = nn.Module()
        self.drop_cache()

    @torch.inference_mode()
    def execute(self, batch: Batch) -> Tensor:
        """Logits [R, vocab] of the rows batch.logits_indices; K and V of all tokens are written
        to their slots."""
        self.backend.begin_step(batch)
        with active(self.backend):
            return forward(self.model, batch.input_ids, batch.positions, batch.logits_indices)


class _NoCache:
    """Stands where the cache was dropped, until there is another."""

    nbytes = 0

    def begin_step(self, batch: Batch) -> None:
        raise RuntimeError("The KV cache was dropped.")

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        raise RuntimeError("The KV cache was dropped.")

    def clear_blocks(self, blocks: list[int]) -> None:
        raise RuntimeError("The KV cache was dropped.")


_NO_CACHE = _NoCache()


def forward(model: nn.Module, input_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    output = model(
        input_ids=input_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=rows,
    )
    return output.logits[0]


@torch.inference_mode()
def probe_kv(model: nn.Module) -> dict[int, LayerSpec]:
    """What each layer stores in the KV cache, seen in a forward pass of one token."""
    probe = KVProbe()
    device = next(model.parameters()).device
    one = torch.zeros(1, dtype=torch.int64, device=device)
    with active(probe):
        forward(model, one, one, one)
    return probe.layers
