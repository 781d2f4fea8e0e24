"""Runs a model with CPU offload: its first layers on the CPU, the others on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine.attention.interface import AttentionBackend, active
from engine.attention.offload import OffloadedAttention
from engine.batch.batch import Batch, Span, pack, padding
from engine.errors import UnsupportedModelError, describe, is_out_of_memory
from engine.models.layers.offload import SplitForward
from engine.numerics.rounding import TOLERANCE
from engine.runner import cuda_graphs as graphs
from engine.runner.cuda_graphs import DecodeGraphs, Taps
from engine.runner.model_runner import ModelRunner, forward


class OffloadRunner(ModelRunner):
    """Runs steps with CPU offload. A step is launched on the GPU as soon as the CPU has computed
    its layers. There is no async scheduling: the CPU needs the tokens of the previous step. In
    decode-only steps the GPU part is replayed from a graph. backend: an OffloadedAttention; device:
    the GPU."""

    def __init__(
        self, model: nn.Module, backend: AttentionBackend, crossing: SplitForward, device: str
    ) -> None:
        super().__init__(model, backend, "cpu")  # where a step begins
        self._halves: SplitForward | None = crossing
        self._gpu = torch.device(device)
        self._is_checked = False

    @property
    def _cache(self) -> OffloadedAttention:
        assert isinstance(self.backend, OffloadedAttention)
        return self.backend

    @property
    def _crossing(self) -> SplitForward:
        assert self._halves is not None, "dropped"
        return self._halves

    def drop(self) -> None:
        super().drop()
        self._halves = None  # it refers to the layers

    @torch.inference_mode()
    def execute_eagerly(self, batch: Batch, drawn: Tensor | None = None) -> Tensor:
        batch = _with_tokens(batch, drawn)
        self.backend.begin_step(batch)
        return self._pass(batch, self._cache.staged.logits_indices)

    def _pass(self, batch: Batch, rows: Tensor) -> Tensor:
        with active(self.backend):
            return forward(self.model, batch.input_ids, batch.positions, rows)

    @torch.inference_mode()
    def capture(
        self,
        sizes: Sequence[int],
        block_size: int,
        num_blocks: int = 0,
        taps: Taps | None = None,
    ) -> None:
        """As `ModelRunner.capture`, of the GPU's half of the steps."""
        self.release_graphs()
        capture = graphs.capture_for(self._gpu)
        if capture is None:
            return
        made = DecodeGraphs(self._compute_on_gpu, self._cache.gpu, block_size, self._gpu)
        try:
            largest = padding(max(sizes), block_size)
            self._crossing.open(max(sizes), lambda: self._pass(largest, largest.logits_indices))
            made.capture(sizes, capture, num_blocks)
            if made.sizes and not self._is_checked:
                self._check(made, block_size)
        except Exception as error:  # a class of transformers may compute anything between layers
            made.release()
            memory = "out of memory at every batch size"
            other = f"graph capture failed: {describe(error).cause}"
            made.problem = memory if is_out_of_memory(error) else other
        if not made.sizes:
            self._crossing.close()
        self.graphs = made

    def _check(self, made: DecodeGraphs, block_size: int) -> None:
        """Check once that both halves give the result of the whole model: a class may compute
        anything between its layers. Requests may have KV in the cache, after an earlier attempt
        that ran out of memory."""
        one = pack([Span([1], 0, [0], 1)], block_size)
        with self._cache.as_before(0):
            expected = self.execute_eagerly(one).clone()
            found = self._replay(made, one, None, None)
        difference = float((found - expected).float().norm() / expected.float().norm())
        if not difference <= TOLERANCE[expected.dtype]:  # also NaN
            raise UnsupportedModelError(f"graph and eager results differ by {difference:.1e}")
        self._is_checked = True

    def _compute_on_gpu(self, batch: Batch) -> Tensor:
        """`batch` is on the GPU, which is given its tokens by the CPU's half."""
        return self._crossing.compute_on_gpu(
            lambda: self._pass(padding(batch.num_tokens, 1), batch.logits_indices)
        )

    @torch.inference_mode()
    def _replay(
        self, graphs: DecodeGraphs, batch: Batch, drawn: Tensor | None, taps: Taps | None
    ) -> Tensor:
        batch = _with_tokens(batch, drawn)
        self._cache.host.begin_step(batch)
        self._crossing.compute_on_cpu(lambda: self._pass(batch, batch.logits_indices))
        return graphs.execute(batch)

    def release_graphs(self) -> None:
        if self.graphs is not None:
            self._crossing.close()
        super().release_graphs()


def _with_tokens(batch: Batch, drawn: Tensor | None) -> Batch:
    """With those that were drawn on the GPU, for which the CPU has to wait: see `put_drawn`."""
    if drawn is None:
        return batch
    return dataclasses.replace(batch, input_ids=drawn.clamp(min=0).cpu())
