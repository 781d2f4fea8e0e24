"""Order on the simulated device: streams, events, and what waits for what."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.gpu.simulated.copies import copies
from tests.gpu.simulated.machine import Memory, SimulatedError, machine

_numbers = itertools.count()
_streams: list[Stream] = []


class Stream:
    """seen: how far in each other stream all is done that comes before what is launched next."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.number = next(_numbers)
        self.place = 0
        self.seen: dict[int, int] = {}
        _streams.append(self)

    @property
    def cuda_stream(self) -> int:
        return self.number

    def launch(self, read: Iterable[Memory], written: Iterable[Memory]) -> int:
        """A place for an operation. Raises where it could run beside one that it depends on."""
        self.place += 1
        for piece in read:
            self._check(*piece.written, "reads what it may not see yet")
            piece.used[self.number] = self.place
        for piece in written:
            self._check(*piece.written, "writes beside another write")
            for stream, place in piece.used.items():
                self._check(stream, place, "writes what another stream may still read")
            piece.written = (self.number, self.place)
            piece.used[self.number] = self.place
        return self.place

    def _check(self, stream: int, place: int, what: str) -> None:
        if stream != self.number and place > self.seen.get(stream, 0):
            raise SimulatedError(f"an operation of stream {self.number} {what} (of {stream})")

    def _follow(self, reached: dict[int, int]) -> None:
        for number, place in reached.items():
            self.seen[number] = max(place, self.seen.get(number, 0))

    def reached(self) -> dict[int, int]:
        return {**self.seen, self.number: self.place}

    def wait_stream(self, other: Stream) -> None:
        self._follow(other.reached())

    def wait_event(self, event: Event) -> None:
        self._follow(event.reached)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _wait_for(self.reached())


class Event:
    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._times = enable_timing
        self._at: float | None = None
        self.reached: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        self.reached = (stream or current_stream()).reached()
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        _wait_for(self.reached)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, end: Event) -> float:
        if not (self._times and end._times) or self._at is None or end._at is None:
            raise RuntimeError("Both events must be created with timing, and recorded")
        return (end._at - self._at) * 1000


def _wait_for(reached: dict[int, int]) -> None:
    if machine.recording is not None:
        raise SimulatedError("operation not permitted when stream is capturing: to wait")
    copies.finish(reached)
    for stream in _streams:  # what the host launches from now on comes after
        stream._follow(reached)


DEFAULT = Stream()
_local = threading.local()


def current_stream(device: Any = None) -> Stream:
    stream: Stream = getattr(_local, "stream", DEFAULT)
    return stream


def set_stream(stream: Stream) -> None:
    _local.stream = stream


@contextmanager
def stream_of(stream: Stream | None) -> Iterator[None]:
    """torch.cuda.stream"""
    before = current_stream()
    set_stream(stream or before)
    try:
        yield
    finally:
        set_stream(before)


def synchronize(device: Any = None) -> None:
    """All streams."""
    _wait_for({stream.number: stream.place for stream in _streams})
