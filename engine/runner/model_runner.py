"""Runs the model once over all tokens of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NoReturn

import torch
from torch import Tensor, nn

from engine.attention.cpu import IDLE_S, CPUAttention
from engine.attention.interface import (
    AttentionBackend,
    KVProbe,
    LayerSpec,
    active,
)
from engine.batch.batch import Batch
from engine.batch.transfer import Staging
from engine.kernels.cpu.library import FORMATS
from engine.runner import cuda_graphs as graphs
from engine.runner.cuda_graphs import DecodeGraphs, Taps, put_drawn
from engine.runner.recording import StepRecordings, can_record


class ModelRunner:
    """A model and its KV cache. Scheduler and block pool know nothing of either."""

    def __init__(
        self, model: nn.Module, backend: AttentionBackend, device: torch.device | str = "cpu"
    ) -> None:
        self.model = model
        without_padding_check(model)
        self.backend = backend
        self.device = torch.device(device)
        self.graphs: DecodeGraphs | None = None
        self.recordings: StepRecordings | None = None
        self.was_replayed = False  # the last step that was executed
        self._staging = Staging(self.device)

    def capture(
        self,
        sizes: Sequence[int],
        block_size: int,
        num_blocks: int = 0,
        taps: Taps | None = None,
    ) -> None:
        """Capture steps of so many requests that decode, over the cache as it is; on the CPU small
        steps are recorded when they come again. num_blocks, taps: see `DecodeGraphs`."""
        self.release_graphs()
        capture = graphs.capture_for(self.device)
        if capture is not None:
            self.graphs = DecodeGraphs(self._compute, self.backend, block_size, self.device, taps)
            self.graphs.capture(sizes, capture, num_blocks)
        elif self.device.type == "cpu" and can_record(self.model):
            self.recordings = self._new_recordings()

    def _new_recordings(self) -> StepRecordings:
        # a model in 16 bits may have parameters in float32: scales, or what its class keeps so
        in_16_bits = (one.dtype for one in self.model.parameters() if one.dtype in FORMATS)
        dtype = next(in_16_bits, torch.float32)
        return StepRecordings(self._compute_alone, self.backend, dtype)

    def use_ahead(self, num_blocks: int) -> bool:
        """See `CPUAttention.use_ahead`."""
        backend = self.backend
        return isinstance(backend, CPUAttention) and backend.use_ahead(num_blocks, IDLE_S)

    def drop_cache(self) -> None:
        self.release_graphs()
        self.backend = _NoCache()

    def drop(self) -> None:
        """Free model and cache; the runner cannot execute any more."""
        self.drop_cache()
        self.model = nn.Module()

    def execute(
        self, batch: Batch, drawn: Tensor | None = None, taps: Taps | None = None
    ) -> Tensor:
        """Logits [R, vocab] of the rows batch.logits_indices; K and V of all tokens are written
        to their slots. They are good until the next call.

        `batch` is on the host. drawn: int64 [T] on the device, the tokens in place of its
        input_ids where these are not known to the host yet. taps: what listens to this pass.
        """
        graphs, self.was_replayed = self.graphs, False
        if graphs is not None and taps in (None, graphs.taps) and graphs.fits(batch):
            self.was_replayed = True
            return self._replay(graphs, batch, drawn, taps)
        recordings = self.recordings
        if recordings is not None and taps is None and drawn is None:
            logits = recordings.execute(batch)
            if logits is not None:
                return logits
        with taps or nullcontext():
            return self.execute_eagerly(batch, drawn)

    def _replay(
        self, graphs: DecodeGraphs, batch: Batch, drawn: Tensor | None, taps: Taps | None
    ) -> Tensor:
        return graphs.execute(batch, drawn, is_tapped=taps is not None)

    @torch.inference_mode()
    def execute_eagerly(self, batch: Batch, drawn: Tensor | None = None) -> Tensor:
        """`execute` kernel by kernel, so that hooks see the intermediate results."""
        batch = self._staging.stage(batch)
        if drawn is not None:
            put_drawn(batch, drawn)
        self.backend.begin_step(batch)
        return self._compute(batch)

    def _compute(self, batch: Batch) -> Tensor:
        with active(self.backend):
            return self._compute_alone(batch)

    def _compute_alone(self, batch: Batch) -> Tensor:
        """By the attention that is active."""
        return forward(self.model, batch.input_ids, batch.positions, batch.logits_indices)

    @contextmanager
    def without_replays(self) -> Iterator[None]:
        """Inside of it no step is replayed that was captured or recorded outside; on the CPU steps
        are recorded anew."""
        kept = self.graphs, self.recordings
        self.graphs = None
        if self.recordings is not None:
            self.recordings = self._new_recordings()
        try:
            yield
        finally:
            self.graphs, self.recordings = kept

    def release_graphs(self) -> None:
        """Free the captured and recorded steps; all steps are launched kernel by kernel from now
        on."""
        self.recordings = None
        if self.graphs is not None:
            self.graphs.release()
            self.graphs = None


def without_padding_check(model: nn.Module) -> None:
    """Skip the check of some transformers models (GPT-2) whether their input is padded. It never is
    here, and the check would synchronize with the GPU."""
    for module in model.modules():
        if hasattr(module, _PADDING_CHECK):
            setattr(module, _PADDING_CHECK, lambda *args: None)


_PADDING_CHECK = "warn_if_padding_and_no_attention_mask"


class _NoCache:
    """The backend after the cache was dropped, until there is a new one."""

    nbytes = resident = 0

    def begin_step(self, *_: object) -> NoReturn:
        raise RuntimeError("The KV cache was dropped.")

    forward = attend = clear_blocks = begin_step


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
    """The KV spec of each layer, from a forward pass of one token."""
    probe = KVProbe()
    with active(probe):
        compute_one(model)
    return probe.layers


def compute_one(model: nn.Module) -> Tensor:
    """Logits [1, vocab] of a pass over one token, wherever it ends."""
    begins = next(model.parameters()).device
    one = torch.zeros(1, dtype=torch.int64, device=begins)
    row = torch.zeros(1, dtype=torch.int64)  # of the host: every device can be asked for it
    return forward(model, one, one, row)
