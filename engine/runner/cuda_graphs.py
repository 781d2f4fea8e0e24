"""Decode steps, captured once as CUDA graphs and replayed.

A decoding step is hundreds of small kernels, and launching them one by one takes the host longer
than the device needs to run them. A graph is launched at once. What it computes is fixed when it is
captured: shapes, and the addresses that it reads and writes. So there is a graph for some numbers
of requests, and a step is filled up to the next of them:

    5 requests decode   [ r0 | r1 | r2 | r3 | r4 | padding ... ]    the graph for 8
    static memory         inputs (Staging), the backend's block tables and lengths, logits
    result              [ l0 | l1 | l2 | l3 | l4 ]                  cut off again

All graphs share one pool of memory, for only one of them runs at a time: the largest is captured
first, and the others find their memory there. The logits lie outside the pool.

Steps that verify drafts are replayed too where that is faster: see `verify_as_decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.attention.gpu import MOST_CAPTURED
from engine.attention.interface import AttentionBackend
from engine.batch.batch import Batch, pad, padding
from engine.batch.transfer import Staging, capacity_for
from engine.config import EngineConfig
from engine.errors import describe, is_out_of_memory
from engine.runner.cuda_capture import CudaCapture
from engine.runner.verify_as_decode import Worth, can_unroll, unroll
from engine.units import bytes_text

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, MOST_CAPTURED)
"""Rows of a captured step: close enough together that at most half of a step is padding, and of a
large one a third."""

DRAFT_ROWS = 2
"""Most tokens of a request in a draft model's pass that is replayed: its last, and a draft before
that stood."""

_MIB = 2**20
_BYTES_EACH = 16 * _MIB
_READ_TOKENS = 2048  # of a sequence whose reading is timed


class Graph(Protocol):
    """A captured step."""

    def replay(self) -> None: ...

    def reset(self) -> None:
        """Give its memory back."""


class Capture(Protocol):
    """Captures the kernels that a function launches. `graph_bytes`: memory of all its graphs."""

    def __call__(self, run: Callable[[], None]) -> Graph: ...

    @property
    def graph_bytes(self) -> int: ...

    def seconds(self, run: Callable[[], object]) -> float:
        """What `run` takes, until all that it launches is done."""


class Taps(Protocol):
    """Keeps hidden states [T, hidden] of the model's passes inside its `with`."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: Any) -> None: ...

    def take(self) -> list[Tensor]:
        """Those of the last pass, once."""

    def hold(self, states: list[Tensor]) -> None:
        """Use these as the states of the last pass, which was replayed."""


def most_rows(config: EngineConfig) -> int:
    """Rows of the largest step to capture: one per request, and one per draft."""
    return min(config.max_num_seqs * (1 + config.most_drafts), SIZES[-1])


def sizes_for(most: int) -> tuple[int, ...]:
    """Sizes of the graphs for steps of up to `most` rows."""
    most = min(most, SIZES[-1])
    return (*(size for size in SIZES if size < most), most)


def estimated_bytes(most: int, vocab_size: int) -> int:
    """What the graphs for steps of up to `most` rows are left room for, before they are captured
    and measured: their logits, and for each what the driver keeps of some hundred launches."""
    sizes = sizes_for(most)
    return len(sizes) * _BYTES_EACH + sizes[-1] * vocab_size * 4


def room_for(config: EngineConfig, vocab_size: int) -> int:
    """`estimated_bytes` of all graphs that a configuration asks for."""
    if config.enforce_eager:
        return 0
    room = estimated_bytes(most_rows(config), vocab_size)
    if config.speculative_method == "draft_model":
        room += estimated_bytes(DRAFT_ROWS * config.max_num_seqs, vocab_size)
    return room


def capture_for(device: torch.device) -> Capture | None:
    """The capture implementation for a device; None if it cannot capture."""
    return CudaCapture(device) if device.type == "cuda" else None


class DecodeGraphs:
    """The captured steps of one model over one cache. `compute`: returns the logits of all rows of
    a batch that the backend has begun; its launches are captured. `taps`: hidden states that are
    copied in every replay. `worth`: measurements of verifying drafts as rows; None without any."""

    def __init__(
        self,
        compute: Callable[[Batch], Tensor],
        backend: AttentionBackend,
        block_size: int,
        device: torch.device,
        taps: Taps | None = None,
    ) -> None:
        self.taps = taps
        self._compute = compute
        self._backend = backend
        self._block_size = block_size
        self._staging = Staging(device)
        self._device = device
        self._graphs: dict[int, Graph] = {}
        self._logits: Tensor | None = None
        self._states: list[Tensor] = []
        self.worth: Worth | None = None
        self.graph_bytes = 0
        self.problem = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self._graphs))

    @property
    def summary(self) -> str:
        """In words: "13 capture sizes up to 256 tokens, 210 MiB"; "" where there are none."""
        if not self._graphs:
            return ""
        count, most = len(self._graphs), self.sizes[-1]
        sizes = f"{count} capture size{'s' * (count > 1)}"
        tokens = f"{most} token{'s' * (most > 1)}"
        return f"{sizes} up to {tokens}, {bytes_text(self.graph_bytes)}"

    @torch.inference_mode()
    def capture(self, sizes: Sequence[int], capture: Capture, num_blocks: int = 0) -> None:
        """Capture a step of each of these sizes. Where memory runs out there are fewer; where the
        model's step cannot be captured there are none. `problem` says why. num_blocks: most of a
        sequence, where steps that verify drafts are to be replayed too, if that is faster."""
        most = getattr(self._backend, "most_captured", max(sizes))
        sizes = [size for size in sizes if size <= most]
        if not sizes:
            self.problem = "PyTorch attention does not support graph capture"
            return
        self._staging = Staging(self._device, capacity_for(max(sizes)))
        missing = []
        for size in sorted(sizes, reverse=True):
            try:
                self._graphs[size] = self._capture(size, capture)
            except Exception as error:  # a model may do anything that a graph cannot hold
                # where the capture is ended by an error, ending it is another
                first = error.__context__ or error
                if is_out_of_memory(error) or is_out_of_memory(first):
                    missing.append(size)
                    continue
                self.release()
                self.problem = f"capture failed: {describe(first).cause}"
                return
        self.graph_bytes = capture.graph_bytes
        untimed: list[int] = []
        if num_blocks and self._graphs:
            self.worth = self._measured(capture, num_blocks)
            untimed = [size for size in self.sizes if size not in self.worth.saved_s]
        steps, drafts = (", ".join(map(str, found)) for found in (missing, untimed))
        problems = (
            f"not enough memory for steps of {steps} tokens" if steps else "",
            f"not enough memory to benchmark drafts of {drafts} tokens" if drafts else "",
        )
        self.problem = "; ".join(filter(None, problems))

    def _capture(self, size: int, capture: Capture) -> Graph:
        batch = self._staging.copy(padding(size, self._block_size))
        self._backend.begin_step(batch)

        def run() -> None:
            logits, *states = self._results(batch)
            if self._logits is None:  # before the first capture, in its warm-up
                self._states = [torch.empty_like(state) for state in states]
                self._logits = torch.empty_like(logits)
            self._logits[:size].copy_(logits)
            for kept, state in zip(self._states, states, strict=True):
                kept[:size].copy_(state)

        return capture(run)

    def _results(self, batch: Batch) -> list[Tensor]:
        """The logits, and the hidden states that are listened to."""
        if self.taps is None:
            return [self._compute(batch)]
        with self.taps:
            logits = self._compute(batch)
        return [logits, *self.taps.take()]

    def _measured(self, capture: Capture, num_blocks: int) -> Worth:
        """What replays save, and what they cost more where drafts are verified in rows. Sizes for
        which memory does not suffice to launch the step are left out."""
        saved = {}
        for size in self.sizes:
            step = self._staging.copy(padding(size, self._block_size))
            self._backend.begin_step(step)
            replayed = capture.seconds(self._graphs[size].replay)
            try:
                launched = capture.seconds(partial(self._compute, step))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            else:
                saved[size] = max(0.0, launched - replayed)
        # Rows that read the same blocks, as those of one request do, of the largest step.
        blocks = min(num_blocks, -(-_READ_TOKENS // self._block_size))
        tokens = blocks * self._block_size
        reading = replace(step, seq_lens=[tokens] * size, block_tables=[list(range(blocks))] * size)
        self._backend.begin_step(reading)
        took = capture.seconds(self._graphs[size].replay)
        return Worth(saved, max(0.0, took - replayed) / (size * tokens))

    def fits(self, batch: Batch) -> bool:
        """Whether there is a graph for a batch, and to replay it is faster."""
        if not self._graphs or batch.num_tokens > max(self._graphs):
            return False
        if batch.is_decode or self.worth is None or not can_unroll(batch):
            return batch.is_decode
        return self.worth.pays(batch, self._size_for(batch))

    def replays(self, num_tokens: int, extra: int) -> bool:
        """`fits` of a step that is to be planned: so many tokens, all sampled, whose rows read
        `extra` tokens more than their requests would (0: everybody decodes)."""
        if not self._graphs or num_tokens > max(self._graphs):
            return False
        if not extra:
            return True
        return self.worth is not None and self.worth.pays_for(extra, self._size(num_tokens))

    def _size_for(self, batch: Batch) -> int:
        return self._size(batch.num_tokens)

    def _size(self, num_tokens: int) -> int:
        return min(size for size in self._graphs if size >= num_tokens)

    @torch.inference_mode()
    def execute(
        self, batch: Batch, drawn: Tensor | None = None, *, is_tapped: bool = False
    ) -> Tensor:
        """Logits [T, vocab] of a batch that fits, until the next call. `batch` is on the host;
        drawn: int64 [T] on the device, in place of its input_ids. is_tapped: whether `taps` get the
        hidden states."""
        size = self._size_for(batch)
        rows = batch if batch.is_decode else unroll(batch)
        staged = self._staging.copy(pad(rows, size))
        if drawn is not None:
            put_drawn(staged, drawn)
        self._backend.begin_step(staged)
        self._graphs[size].replay()
        if self.taps is not None and is_tapped:
            self.taps.hold([states[: batch.num_tokens] for states in self._states])
        assert self._logits is not None
        return self._logits[: batch.num_tokens]

    def release(self) -> None:
        """Give the memory of all graphs back; none may be running."""
        if self._graphs and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._logits = self.worth = None
        self._states = []
        if self.taps is not None:
            self.taps.take()  # of a pass that is over: they may lie in the graphs' memory
        self.graph_bytes = 0


def put_drawn(batch: Batch, drawn: Tensor) -> None:
    """Make tokens that the step before drew on the device the first input ids of a batch. A failed
    row has none (-1): what is computed of it is thrown away."""
    torch.clamp(drawn, min=0, out=batch.input_ids[: len(drawn)])
