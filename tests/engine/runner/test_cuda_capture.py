"""Capturing on a GPU, with a stand-in for torch."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.errors import UnsupportedModelError
from engine.hardware.malloc import give_back
from engine.runner import cuda_capture
from engine.runner.cuda_capture import CudaCapture
from engine.runner.cuda_graphs import capture_for

GPU = torch.device("cuda", 0)
POOL = (0, 7)
WAIT_S = 30.0


class Fake:
    """What captures call of torch. `underway`: the pools of captures that were not ended; streams
    by number, 0 the default."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[torch.device] = []
        self.underway: list[tuple[int, int]] = []
        self.stream: Any = self._stream(GPU)
        self.made.clear()
        self.sync_mode: Any = 0
        self.capturing = False
        replaced: dict[str, Any] = {
            "graph_pool_handle": lambda: POOL,
            "Stream": self._stream,
            "CUDAGraph": SimpleNamespace,
            "graph": self._graph,
            "stream": self._on,
            "device": lambda device: self._nothing(),
            "current_stream": lambda: self.stream,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "synchronize": lambda device: None,
            "empty_cache": self._empty_cache,
            "mem_get_info": lambda device: (2**30, 2**31),
            "get_sync_debug_mode": lambda: self.sync_mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "sync_mode", mode),
        }
        for name, value in replaced.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def _stream(self, device: torch.device) -> Any:
        self.made.append(device)
        return SimpleNamespace(wait_stream=lambda other: None)

    @contextmanager
    def _nothing(self) -> Iterator[None]:
        yield

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def _graph(self, graph: Any, **options: Any) -> Any:
        """The context in which torch captures."""
        fake = self

        class Capturing:
            def __enter__(self) -> None:
                fake.underway.append(options["pool"])
                self.before, fake.stream = fake.stream, options["stream"]
                fake.capturing = True

            def __exit__(self, kind: Any, *exc: Any) -> None:
                fake.capturing = False
                fake.underway.remove(options["pool"])
                if kind is RuntimeError:
                    raise RuntimeError("CUDA error: operation failed due to a previous error")
                fake.stream = self.before

        return Capturing()

    def _empty_cache(self) -> None:
        assert not self.underway, "captures_underway.empty() INTERNAL ASSERT FAILED"

    def wait(self) -> None:
        """What reading a number from the device is to torch."""
        if self.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self.sync_mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)


@pytest.fixture(autouse=True)
def no_stream_is_kept() -> Iterator[None]:
    cuda_capture._capture_stream.cache_clear()
    yield
    cuda_capture._capture_stream.cache_clear()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(monkeypatch)


def test_captures_share_a_stream(fake: Fake) -> None:
    """What libraries take for a stream is theirs for good: a stream for each model that is loaded
    would take more with each."""
    devices = [torch.device("cuda", index) for index in (0, 0, 1, 0)]
    streams = [CudaCapture(device)._stream for device in devices]
    assert fake.made == [devices[0], devices[2]]
    assert streams[0] is streams[1] is streams[3] is not streams[2]


def test_a_step_is_run_twice_and_captured(fake: Fake) -> None:
    seen: list[tuple[bool, Any]] = []
    before = fake.stream
    capture = capture_for(GPU)
    assert isinstance(capture, CudaCapture)
    capture(lambda: seen.append((fake.capturing, fake.sync_mode)))
    assert seen == [(False, 0), (False, "warn"), (True, 0)]
    assert fake.stream is before and not fake.underway


def test_a_step_that_waits_is_not_captured_at_all(fake: Fake) -> None:
    capture, seen = CudaCapture(GPU), []

    def run() -> None:
        seen.append(fake.capturing)
        fake.wait()

    with pytest.raises(UnsupportedModelError, match="synchronizes"):
        capture(run)
    assert seen == [False, False] and fake.sync_mode == 0
    assert not fake.underway and capture.graph_bytes == 0


def test_another_thread_may_wait_meanwhile(fake: Fake) -> None:
    waited: list[object] = []

    def wait() -> None:
        waited.append(fake.sync_mode)
        fake.wait()

    def run() -> None:
        if not fake.capturing:
            other = threading.Thread(target=wait)
            other.start()
            other.join(WAIT_S)

    capture = CudaCapture(GPU)
    capture(run)
    assert waited == [0, "warn"] and not fake.underway


def test_after_a_failed_capture_the_next_step_is_captured(fake: Fake) -> None:
    before, capture = fake.stream, CudaCapture(GPU)

    def run() -> None:
        if fake.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="previous error") as caught:
        capture(run)
    assert "not permitted" in str(caught.value.__context__)
    assert fake.stream is before and not fake.underway
    torch.cuda.empty_cache()
    CudaCapture(GPU)(lambda: None)


def test_memory_that_runs_out_breaks_no_capture(fake: Fake) -> None:
    def run() -> None:
        if fake.capturing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")

    with pytest.raises(torch.OutOfMemoryError):
        CudaCapture(GPU)(run)
    assert not fake.underway


def test_no_memory_is_given_back_while_another_thread_captures(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To torch it would be an error of the thread that gives back."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    begun, problems = threading.Event(), []

    def gives_back() -> None:
        begun.wait(WAIT_S)
        try:
            give_back()
        except AssertionError as error:
            problems.append(error)

    other = threading.Thread(target=gives_back)
    other.start()

    def run() -> None:
        if fake.capturing:
            begun.set()
            other.join(0.3)  # it waits for us, and so may we not for it

    CudaCapture(GPU)(run)
    other.join(WAIT_S)
    assert not other.is_alive() and not problems
