"""Frames of a recording as lines of JSON, each with the changes since the line before. No Qt.

    {"t": 12.5, "k": "snapshot", "steps": [...], "requests": [...], "model": null, ...}

The lines are the records of `codec` and `snapshots` by field name. null means "unchanged", so a run
of lines (a segment of the file) is read from its beginning. Recordings hold no prompt, no reply, no
token id and no chat title; prompts that begin alike have equal random numbers (`Arrival`).
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from app.wire.blocks import ARRAYS, DTYPES, INDEX, WireBlocks
from app.wire.codec import EVENTS, PLAIN
from app.wire.protocol import ProtocolError
from app.wire.snapshots import MEMORY, SnapshotReader, SnapshotWriter, WireSnapshot
from engine import messages
from engine.errors import InferdeckError
from engine.json_file import checked, shown
from engine.snapshot import (
    EngineSnapshot,
    FinishReason,
    RequestSnapshot,
    RequestTimes,
    ThreadFigures,
    TokenEvent,
)

Json = dict[str, Any]

_RECORDED = {
    "loaded": ("config", "model", "plan"),
    "reconfigured": ("config", "change", "seconds"),
    "peaks": ("peaks",),
    "crashed": ("error",),
    "unloaded": (),
}
"""Recorded kinds of events, and their fields."""


class Frame(NamedTuple):
    """An engine event, and when the window received it (that run's `time.perf_counter`)."""

    time: float
    event: messages.Event


def encode(frames: Iterable[Frame]) -> bytes:
    """One line per frame; the first line is complete."""
    writer = _Writer()
    lines = (json.dumps(writer.line(frame), separators=(",", ":")) for frame in frames)
    return "".join(line + "\n" for line in lines).encode()


def decode(data: bytes) -> Iterator[Frame]:
    """The frames of `encode`, without an incomplete last line. Raises ValueError at an invalid
    line."""
    reader = _Reader()
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield reader.frame(json.loads(line))
        except MemoryError:
            raise
        except Exception as error:  # of any kind, from any file
            raise ValueError(f"line {number:,}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """What is wrong with a line, in words for a person."""
    if isinstance(error, InferdeckError | ProtocolError):
        return str(error.args[0]).rstrip(".").partition(". ")[0]
    return "invalid JSON" if isinstance(error, json.JSONDecodeError) else "inconsistent values"


class _Writer(SnapshotWriter):
    def __init__(self) -> None:
        super().__init__()
        self._num_tokens: dict[str, int] = {}  # of each request: token events written so far

    def line(self, frame: Frame) -> Json:
        match frame.event:
            case messages.SnapshotEvent(snapshot):
                kind, body = "snapshot", self._snapshot(snapshot)
            case messages.OutputEvent() as event:
                kind, body = "ended", _ended(event)
            case event:
                kind = PLAIN[type(event)]
                if kind not in _RECORDED:
                    raise ValueError(f"{type(event).__name__} is not recorded")
                body = {n: msgspec.to_builtins(getattr(event, n)) for n in _RECORDED[kind]}
        return {"t": frame.time, "k": kind, **body}

    def _known(self, r: RequestSnapshot) -> int:
        known = self._num_tokens.get(r.request_id, 0)
        self._num_tokens[r.request_id] = len(r.times.tokens)
        return known

    def _snapshot(self, s: EngineSnapshot) -> Json:
        wire = self.write(s)
        blocks, wire.blocks = wire.blocks, None
        line = dict(zip(wire.__struct_fields__, msgspec.to_builtins(wire), strict=True))
        del line["missing"], line["told"]
        line["memory"] += line.pop("in_ram")
        line["requests"] = [[*r[:-2], r[-1]] for r in line["requests"]]
        line["blocks"] = None if blocks is None else _named_blocks(blocks, s.blocks.tables)
        # a line has draft_s after the times of the other parts
        line["steps"] = [[*v[:9], *v[10:13], v[9], *v[13:]] for v in line["steps"]]
        threads = {} if s.threads is None else s.threads._asdict()
        line["speculation"] = self._changed("speculation", line["speculation"] or {})
        line["threads"] = self._changed("threads", msgspec.to_builtins(threads))
        return line


def _named_blocks(blocks: WireBlocks, tables: tuple[tuple[int, ...], ...]) -> Json:
    """Each array as [values] of all, or [places, values there] of the changes."""
    named: Json = {"size": blocks.block_size, "owners": blocks.owners, "tables": tables}
    for name, change in zip(ARRAYS, blocks.arrays, strict=True):
        values = np.frombuffer(change.values, DTYPES[name]).tolist()
        places = change.places
        where = [] if places is None else [np.frombuffer(places, INDEX).tolist()]
        named[name] = [*where, values]
    return named


def _ended(event: messages.OutputEvent) -> Json:
    times = event.times
    assert event.finish_reason is not None and times is not None
    return {
        "id": event.request_id, "time": event.time, "step_index": event.step_index,
        "prompt": event.num_prompt_tokens, "cached": event.num_cached_tokens,
        "preempted": event.num_preemptions, "reason": event.finish_reason,
        "times": [times.arrival, times.first_scheduled, times.finished, list(times.tokens)],
    }  # fmt: skip


FRAME = "the frame"
"""In errors."""


class _Head(msgspec.Struct):
    t: float
    k: str


class _Ended(msgspec.Struct):
    id: str
    time: float
    step_index: int
    prompt: int
    cached: int
    reason: FinishReason
    times: tuple[float, float | None, float | None, tuple[TokenEvent, ...]]
    preempted: int = -1  # recordings from before lack it


_Array = Annotated[list[list[int]], msgspec.Meta(min_length=1, max_length=2)]


class _Blocks(msgspec.Struct):
    """Of `_named_blocks`."""

    size: int
    owners: tuple[str, ...]
    tables: list[list[int]]
    owner: _Array
    ref_count: _Array
    fill: _Array
    hashed: _Array


class _Shape(msgspec.Struct):
    """The fields of a snapshot's line that are stored in another form."""

    memory: list[int]
    requests: list[Annotated[list[Any], msgspec.Meta(min_length=2)]]
    blocks: _Blocks | None
    steps: list[Annotated[list[Any], msgspec.Meta(min_length=13)]]
    speculation: dict[str, Any] | None = None
    threads: dict[str, Any] | None = None
    gpus: list[Any] | None = None


_Named = msgspec.defstruct(
    "_Named", [(f.name, f.type) for f in msgspec.structs.fields(WireSnapshot)]
)
"""A `WireSnapshot` by field name: errors name the field."""


class _Reader(SnapshotReader):
    def __init__(self) -> None:
        super().__init__()
        self._last: Json = {"gpus": [], "threads": {}}  # missing in the first recordings
        self._num_blocks = 0

    def frame(self, line: Any) -> Frame:
        head = checked(line, _Head, FRAME)
        if not math.isfinite(head.t):
            raise ValueError(f"t is {head.t}; expected a finite number")
        return Frame(head.t, self._event(head.k, line))

    def _event(self, kind: str, line: Json) -> messages.Event:
        if kind == "snapshot":
            return messages.SnapshotEvent(self.read(self._wire(line)))
        if kind == "ended":
            return _read_ended(checked(line, _Ended, FRAME))
        if kind not in _RECORDED:
            raise ProtocolError(f"Unknown frame type: {shown(kind)}.")
        event: messages.Event = checked({"traceback": "", **line}, EVENTS[kind], FRAME)
        return event

    def _remember(self, tokens: dict[str, tuple[TokenEvent, ...]]) -> None:
        self._tokens |= tokens

    def _wire(self, line: Json) -> WireSnapshot:
        given = checked(line, _Shape, FRAME)
        for name in ("speculation", "threads", "gpus"):
            if line.get(name) is not None:
                self._last[name] = line[name]
        threads = self._last["threads"]
        known = self._tokens
        values = {
            **line,
            "memory": given.memory[: len(MEMORY)],
            "in_ram": given.memory[len(MEMORY) :] or (0, 0),
            "requests": [[*r[:-1], len(known.get(str(r[0]), ())), r[-1]] for r in given.requests],
            "blocks": None if given.blocks is None else self._changes(given.blocks),
            "steps": [[*v[:9], v[12], *v[9:12], *v[13:]] for v in given.steps],
            "speculation": self._last["speculation"] or None,
            "gpus": self._last["gpus"],
            "threads": [threads[n] for n in ThreadFigures._fields if n in threads] or None,
            "missing": (),
            "told": None,
            "settings_since": line.get("settings_since"),
            "arrivals": line.get("arrivals", ()),  # missing in older ones
        }
        return WireSnapshot(*msgspec.structs.astuple(checked(values, _Named, FRAME)))

    def _changes(self, blocks: _Blocks) -> list[Any]:
        changes = []
        for name in ARRAYS:
            *places, values = getattr(blocks, name)
            where = np.array(places[0], INDEX).tobytes() if places else None
            self._num_blocks = self._num_blocks if places else len(values)
            changes.append([where, np.array(values, DTYPES[name]).tobytes()])
        tables = [(0, table) for table in blocks.tables]
        return [blocks.size, self._num_blocks, blocks.owners, tables, changes]


def _read_ended(line: _Ended) -> messages.OutputEvent:
    arrival, scheduled, finished, tokens = line.times
    return messages.OutputEvent(
        line.id, "", (), line.time, line.step_index, line.prompt, line.cached,
        finish_reason=line.reason, times=RequestTimes(arrival, scheduled, tokens, finished),
        num_preemptions=line.preempted,
    )  # fmt: skip
