"""CUDA graphs of the simulated GPUs: of one each, and of what one thread launches.

While something is captured nothing is computed: what it would write stays as it was, and what it
makes has no meaning yet. A replay runs all of it on the memory of then. What was made inside a
capture lies in the pool that its graphs share, so every replay spoils it for the others; memory
from outside must still be somebody's.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.gpu.simulated import streams
from tests.gpu.simulated.machine import Memory, SimulatedError, machine, poison

Operation = Callable[[], object]


class Recording:
    """What a graph does. made: what it allocates; outside: other memory that it reads or writes."""

    def __init__(self, stream: streams.Stream) -> None:
        self.stream = stream
        self.operations: list[Operation] = []
        self.made: list[Tensor] = []
        self._made: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._outside: dict[weakref.ref[Memory], str] = {}
        self._written: set[weakref.ref[Memory]] = set()

    def add(
        self,
        what: str,
        run: Operation,
        read: list[Memory],
        written: list[Memory],
        stream: streams.Stream,
    ) -> None:
        if stream.device != self.stream.device:
            raise SimulatedError(
                f"{what} is launched on {stream.device} while {self.stream.device} is captured"
            )
        self.operations.append(run)
        for piece in [*read, *written]:
            if piece not in self._made:
                self._outside.setdefault(weakref.ref(piece), what)
        self._written.update(map(weakref.ref, written))

    def add_made(self, real: Tensor, piece: Memory) -> None:
        self.made.append(real)
        self._made.add(piece)

    def outside(self) -> tuple[list[Memory], list[Memory]]:
        """(read, written), all of it still there."""
        read, written = [], []
        for reference, what in self._outside.items():
            piece = reference()
            if piece is None:
                raise SimulatedError(f"a graph is replayed whose {what} uses memory given back")
            (written if reference in self._written else read).append(piece)
        return read, written


class Graph:
    """torch.cuda.CUDAGraph"""

    def __init__(self, keep_graph: bool = False) -> None:
        self._recording: Recording | None = None
        self._pool: list[Graph] = []

    def replay(self) -> None:
        if machine.recording is not None:
            raise SimulatedError("a graph is replayed while another is captured")
        if self._recording is None:
            raise SimulatedError("a graph is replayed that was given back, or never captured")
        with machine.lock, torch.inference_mode():
            stream = streams.current_stream(self._recording.stream.device)
            stream.launch(*self._recording.outside())
            for graph in self._pool:
                for real in graph._recording.made if graph._recording else ():
                    poison(real)
            for run in self._recording.operations:
                run()

    def reset(self) -> None:
        self._recording = None
        if self in self._pool:
            self._pool.remove(self)

    def _finish(self, recording: Recording, pool: list[Graph]) -> None:
        self._recording, self._pool = recording, pool
        pool.append(self)


class capture:  # noqa: N801  torch's own name for it is graph
    """torch.cuda.graph"""

    default_capture_stream: ClassVar[streams.Stream | None] = None

    def __init__(
        self, graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ) -> None:
        self._graph, self._pool = graph, pool if pool is not None else []
        if stream is None and capture.default_capture_stream is None:
            capture.default_capture_stream = streams.Stream()  # once: of the device current now
        self._stream = stream if stream is not None else capture.default_capture_stream
        assert self._stream is not None
        self._current = streams.stream_of(self._stream)

    def __enter__(self) -> None:
        streams.synchronize()
        gc.collect()
        if self._stream is streams.default_stream(self._stream.device):
            raise SimulatedError("the default stream cannot be captured")
        self._current.__enter__()
        machine.recording = Recording(self._stream)

    def __exit__(self, kind: type[BaseException] | None, *exc: Any) -> None:
        recording, machine.recording = machine.recording, None
        self._current.__exit__(None, None, None)
        if kind is None and recording is not None:
            self._graph._finish(recording, self._pool)
