"""Order on the simulated GPUs: streams, events, and what waits for what."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.gpu.simulated import devices
from tests.gpu.simulated.copies import copies
from tests.gpu.simulated.machine import Memory, SimulatedError, machine

_numbers = itertools.count()
_streams: list[Stream] = []


class Stream:
    """Of one GPU. seen: how far in each other stream all is done that comes before what is launched
    next."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device_index = devices.index_of(device)
        self.device = torch.device("cuda", self.device_index)
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
        if any(not piece.used for piece in written):
            self._reuse()
        for piece in written:
            self._check(*piece.written, "writes beside another write")
            for stream, place in piece.used.items():
                self._check(stream, place, "writes what another stream may still read")
            piece.written = (self.number, self.place)
            piece.used[self.number] = self.place
        return self.place

    def _reuse(self) -> None:
        """New memory may be what was given back that was this stream's."""
        gpu = machine.gpus[self.device_index]
        mine = [others for home, others in gpu.reusable if home == self.number]
        gpu.reusable = [one for one in gpu.reusable if one[0] != self.number]
        for others in mine:
            for stream, place in others.items():
                self._check(stream, place, "gets memory that was given back while it was used")

    def _check(self, stream: int, place: int, what: str) -> None:
        if stream != self.number and place > self.seen.get(stream, 0):
            raise SimulatedError(f"an operation of stream {self.number} {what} (of {stream})")

    def _follow(self, reached: dict[int, int]) -> None:
        with machine.lock:
            for number, place in reached.items():
                self.seen[number] = max(place, self.seen.get(number, 0))

    def reached(self) -> dict[int, int]:
        with machine.lock:
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
    """Of the GPU on whose stream it is first recorded; streams of all can wait for it."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._times = enable_timing
        self._at: float | None = None
        self._device: torch.device | None = None
        self.reached: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self._device = self._device or stream.device
        if self._device != stream.device:
            raise RuntimeError(
                f"Event device {self._device.index} does not match recording stream's device "
                f"{stream.device_index}."
            )
        self.reached = stream.reached()
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
        if self._device != end._device:
            raise RuntimeError("Both events must be of one device")
        return (end._at - self._at) * 1000


def _wait_for(reached: dict[int, int]) -> None:
    if machine.recording is not None:
        raise SimulatedError("operation not permitted when stream is capturing: to wait")
    with machine.lock:
        copies.finish(reached)
        for stream in _streams:  # what the host launches from now on comes after
            stream._follow(reached)


_defaults = [Stream(gpu.index) for gpu in machine.gpus]


class _Current(threading.local):
    """A thread's stream of each GPU."""

    def __init__(self) -> None:
        self.streams = list(_defaults)


_current = _Current()


def default_stream(device: Any = None) -> Stream:
    return _defaults[devices.index_of(device)]


def current_stream(device: Any = None) -> Stream:
    return _current.streams[devices.index_of(device)]


def set_stream(stream: Stream | None) -> None:
    """Its GPU is the thread's current one from now on, as torch has it."""
    if stream is not None:
        devices.set_current(stream.device)
        _current.streams[stream.device_index] = stream


@contextmanager
def stream_of(stream: Stream | None) -> Iterator[None]:
    """torch.cuda.stream"""
    if stream is None:
        yield
        return
    before, there = current_stream(), current_stream(stream.device)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(there)
        set_stream(before)


def synchronize(device: Any = None) -> None:
    """All streams of one GPU."""
    index = devices.index_of(device)
    reached: dict[int, int] = {}
    for stream in [stream for stream in _streams if stream.device_index == index]:
        for number, place in stream.reached().items():
            reached[number] = max(place, reached.get(number, 0))
    _wait_for(reached)
