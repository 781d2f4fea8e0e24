"""State for windows that attach later: model, latest snapshot, recent steps and latency samples."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator
from itertools import islice

import numpy as np

from app.wire.codec import History, WireEvent
from engine import messages as m
from engine.snapshot import (
    BlockSnapshot,
    EngineSnapshot,
    ReportedLoad,
    Sample,
    StepRecord,
    packed,
    unpacked,
)

MAX_STEPS = 20_000
"""Maximum stored steps, and samples of each kind."""
PAST_S, MAX_PAST = 1.0, 600
"""Interval and maximum number of stored snapshots with figures only."""
_PIECE = 1000


class AttachState:
    """Follows the engine's events, all of them in order."""

    def __init__(self) -> None:
        self.loaded: m.Loaded | None = None
        """The loaded model with its current settings."""
        self._progress: m.LoadProgress | None = None
        self._crashed: m.EngineCrashed | None = None
        self.stalled: m.Stalled | None = None
        self._peaks: m.PeaksMeasured | None = None
        self._latest: EngineSnapshot | None = None
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._ttft: deque[Sample] = deque(maxlen=MAX_STEPS)
        self._itl: deque[Sample] = deque(maxlen=MAX_STEPS)
        self._past: deque[EngineSnapshot] = deque(maxlen=MAX_PAST)

    def note(self, event: m.Event) -> None:
        match event:
            case m.SnapshotEvent(snapshot):
                # skip the steps that the previous snapshot had
                since = self._latest.time if self._latest is not None else -math.inf
                self._latest = snapshot
                recent = (s for s in snapshot.steps if s.start + s.duration > since)
                self._steps.extend(map(packed, recent))
                self._ttft.extend(s for s in snapshot.ttft if s.time > since)
                self._itl.extend(s for s in snapshot.itl if s.time > since)
                if not self._past or snapshot.time - self._past[-1].time >= PAST_S:
                    self._past.append(_figures(snapshot))
            case m.LoadProgress():
                self._progress = event
            case m.Loaded():
                self._forget()
                self.loaded = event
            case m.Unloaded():
                self._forget()
            case m.EngineCrashed():
                self._forget()
                self._crashed = event
            case m.Stalled():
                self.stalled = event
            case m.Recovered():
                self.stalled = None
            case m.LoadFailed(serving=None):
                self._forget()
            case m.Reconfigured(config):
                self._progress = None
                if self.loaded is not None:
                    model, plan = event.model or self.loaded.model, event.plan or self.loaded.plan
                    self.loaded = m.Loaded(config, model, plan)
            case m.LoadFailed() | m.ReconfigureFailed():
                self._progress = None
            case m.MadeRoom(_, model, plan) if self.loaded is not None:
                self.loaded = dataclasses.replace(self.loaded, model=model, plan=plan)
            case m.PeaksMeasured() if event.peaks is not None:
                self._peaks = event

    def events(self) -> Iterator[WireEvent]:
        """The events that bring a new window up to date."""
        if self._crashed is not None:
            yield self._crashed
        elif self.loaded is None:
            yield m.Unloaded()
        else:
            yield dataclasses.replace(self.loaded, without_draft=None)
        if self.stalled is not None:
            yield self.stalled
        if self._progress is not None:
            yield self._progress
        if self._peaks is not None:
            yield self._peaks
        if self._latest is not None:
            past = tuple(s for s in self._past if s.time < self._latest.time)
            if past:
                yield History(past=past)
            longest = max(len(self._steps), len(self._ttft), len(self._itl))
            for begin in range(0, longest, _PIECE):
                end = begin + _PIECE
                yield History(
                    tuple(map(unpacked, islice(self._steps, begin, end))),
                    tuple(islice(self._ttft, begin, end)),
                    tuple(islice(self._itl, begin, end)),
                )
            yield m.SnapshotEvent(dataclasses.replace(self._latest, steps=(), ttft=(), itl=()))

    def _forget(self) -> None:
        """Another model or engine: drop what the previous one reported."""
        self.loaded = self._progress = self._crashed = self._latest = self.stalled = None
        self._steps.clear()
        self._ttft.clear()
        self._itl.clear()
        self._past.clear()


_NONE = np.zeros(0, np.int32)
_NO_BLOCKS = BlockSnapshot(1, (), _NONE, _NONE, _NONE, np.zeros(0, np.bool_))


def _figures(s: EngineSnapshot) -> EngineSnapshot:
    """A snapshot with only what charts draw: a few hundred bytes."""
    reported = ReportedLoad(s.num_running, s.num_waiting, s.kv_usage)
    return dataclasses.replace(
        s, requests=(), blocks=_NO_BLOCKS, steps=(), ttft=(), itl=(), told=reported
    )
