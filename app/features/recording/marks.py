"""Marks of a recording: models, changed settings, starts of requests. No Qt."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from app.wire.recording import Frame
from engine import messages
from engine.config import differences_text
from engine.snapshot import EngineSnapshot

_NEAR_S = 0.02  # the cursor is at a mark: the next one is another


class MarkOf(StrEnum):
    MODEL = "model"
    SETTING = "setting"
    REQUEST = "request"
    CRASH = "crash"


class EventMark(NamedTuple):
    """`at`: seconds of playback."""

    at: float
    of: MarkOf
    text: str


def event_marks(
    frames: Sequence[Frame], times: Sequence[float], names: Mapping[str, str]
) -> tuple[EventMark, ...]:
    """Marks in order of time. `times`: of the frames; `names`: of the requests."""
    return tuple(_found(frames, times, names))


def _found(
    frames: Sequence[Frame], times: Sequence[float], names: Mapping[str, str]
) -> Iterator[EventMark]:
    config: Any = None
    seen: set[str] = set()
    for at, (_, event) in zip(times, frames, strict=True):
        match event:
            case messages.Loaded():
                config = event.config
                yield EventMark(at, MarkOf.MODEL, f"Model {event.model.name}")
            case messages.Unloaded():
                yield EventMark(at, MarkOf.MODEL, "Model unloaded")
            case messages.EngineCrashed():
                yield EventMark(at, MarkOf.CRASH, "Engine crashed")
            case messages.Reconfigured():
                text = changes_text(config, event.config)
                config = event.config
                if text:
                    yield EventMark(at, MarkOf.SETTING, text)
            case messages.SnapshotEvent(snapshot):
                config = config if config is not None else snapshot.config
                new = dict.fromkeys(id_ for id_ in requests_of(snapshot) if id_ not in seen)
                seen.update(new)
                for request in new:
                    name = names.get(request, request[:8])
                    yield EventMark(at, MarkOf.REQUEST, f"{name[:1].upper()}{name[1:]} starts")


def requests_of(snapshot: EngineSnapshot) -> list[str]:
    """The listed requests, and those of the steps: short ones have ended by then."""
    steps = (entry.request_id for step in snapshot.steps for entry in step.entries)
    return [*(request.request_id for request in snapshot.requests), *steps]


def changes_text(before: Any, after: Any) -> str:
    """ "Max running requests 16 → 3"; "" for equal settings, or where there are none before."""
    return differences_text(before.differences(after)) if before is not None else ""


def mark_after(marks: Sequence[EventMark], position: float) -> EventMark | None:
    place = bisect_right(marks, position + _NEAR_S, key=lambda mark: mark.at)
    return marks[place] if place < len(marks) else None


def mark_before(marks: Sequence[EventMark], position: float) -> EventMark | None:
    place = bisect_left(marks, position - _NEAR_S, key=lambda mark: mark.at) - 1
    return marks[place] if place >= 0 else None
