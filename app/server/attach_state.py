"""State for windows that attach later: model, latest snapshot, recent steps and latency samples."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from itertools import islice

import numpy as np

from app.wire.codec import History, WireEvent
from engine import messages as m
from engine.snapshot import (
    BlockSnapshot,
    EngineSnapshot,
    Sample,
    StepRecord,
    Told,
    packed,
    unpacked,
)

MAX_STEPS = 20_000
"""Kept of the steps, and of the samples of each kind."""
PAST_S, MAX_PAST = 1.0, 600
"""Of the figures of the engine's state, one snapshot in so long, and so many."""
_PIECE = 1000


class AttachState:
    """Follows the engine's events, all of them in order."""

    def __init__(self) -> None:
        self._loaded: m.Loaded | None = None
        self._progress: m.LoadProgress | None = None
        self._crashed: m.EngineCrashed | None = None
        self._peaks: m.PeaksMeasured | None = None
        self._latest: EngineSnapshot | None = None
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._ttft: deque[Sample] = deque(maxlen=MAX_STEPS)
        self._itl: deque[Sample] = deque(maxlen=MAX_STEPS)
        self._past: deque[EngineSnapshot] = deque(maxlen=MAX_PAST)

    @property
    def loaded(self) -> m.Loaded | None:
        """As the engine is now: its settings may have changed since."""
        return self._loaded

    def note(self, event: m.Event) -> None:
        match event:
            case m.SnapshotEvent(snapshot):
                self._latest = snapshot
                self._steps.extend(map(packed, snapshot.steps))
                self._ttft.extend(snapshot.ttft)
                self._itl.extend(snapshot.itl)
                if not self._past or snapshot.time - self._past[-1].time >= PAST_S:
                    self._past.append(_figures(snapshot))
            case m.LoadProgress():
                self._progress = event
            case m.Loaded():
                self._forget()
                self._loaded = event
            case m.Unloaded():
                self._forget()
            case m.EngineCrashed():
                self._forget()
                self._crashed = event
            case m.LoadFailed():
                self._progress = None
                if event.serving is None:
                    self._forget()
            case m.Reconfigured():
                self._progress = None
                self._change(event)
            case m.ReconfigureFailed():
                self._progress = None
            case m.MadeRoom(_, model, plan) if self._loaded is not None:
                self._loaded = dataclasses.replace(self._loaded, model=model, plan=plan)
            case m.PeaksMeasured() if event.peaks is not None:
                self._peaks = event

    def told(self) -> Iterator[WireEvent]:
        """The events after which a window shows what is."""
        if self._crashed is not None:
            yield self._crashed
        elif self._loaded is None:
            yield m.Unloaded()
        else:
            yield dataclasses.replace(self._loaded, without_draft=None)
        if self._progress is not None:
            yield self._progress
        if self._peaks is not None:
            yield self._peaks
        if self._latest is not None:
            yield from self._figures_before(self._latest.time)
            yield from self._history()
            yield m.SnapshotEvent(dataclasses.replace(self._latest, steps=(), ttft=(), itl=()))

    def _figures_before(self, time: float) -> Iterator[History]:
        past = [s for s in self._past if s.time < time]
        for begin in range(0, len(past), _PIECE):
            yield History(past=tuple(past[begin : begin + _PIECE]))

    def _history(self) -> Iterator[History]:
        longest = max(len(self._steps), len(self._ttft), len(self._itl))
        for begin in range(0, longest, _PIECE):
            end = begin + _PIECE
            yield History(
                tuple(map(unpacked, islice(self._steps, begin, end))),
                tuple(islice(self._ttft, begin, end)),
                tuple(islice(self._itl, begin, end)),
            )

    def _change(self, event: m.Reconfigured) -> None:
        if self._loaded is not None:
            self._loaded = m.Loaded(
                event.config, event.model or self._loaded.model, event.plan or self._loaded.plan
            )

    def _forget(self) -> None:
        """Another model: what was measured tells of the one before."""
        self._loaded = self._progress = self._crashed = self._latest = None
        self._steps.clear()
        self._ttft.clear()
        self._itl.clear()
        self._past.clear()


_NONE = np.zeros(0, np.int32)
_NO_BLOCKS = BlockSnapshot(1, (), _NONE, _NONE, _NONE, np.zeros(0, np.bool_))


def _figures(s: EngineSnapshot) -> EngineSnapshot:
    """What charts draw of a state, in a few hundred bytes."""
    told = Told(s.num_running, s.num_waiting, s.kv_usage)
    return dataclasses.replace(
        s, requests=(), blocks=_NO_BLOCKS, steps=(), ttft=(), itl=(), told=told
    )
