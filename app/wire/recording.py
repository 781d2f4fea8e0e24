"""Frames of a recording as lines of JSON, each with what changed since the line before. No Qt.

    {"t": 12.5, "k": "snapshot", "steps": [...], "requests": [...], "model": null, ...}

null stands for "as before", so a run of lines (a segment of the file) is read from its beginning.
What requests say is never in it: no prompt, no reply, no token id, no title of a chat.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import messages
from engine.config import SETTINGS, Change, EngineConfig
from engine.errors import ErrorInfo
from engine.hardware.peaks import Peaks
from engine.snapshot import (
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    FinishReason,
    GpuFigures,
    GpuProcess,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    SpeculationSnapshot,
    SpeedUp,
    StepEntry,
    StepRecord,
    ThreadFigures,
    ThreadsOf,
    TokenEvent,
)

Json = dict[str, Any]
_ARRAYS = ("owner", "ref_count", "fill", "hashed")
_DTYPES = {"hashed": np.bool_}


class Frame(NamedTuple):
    """An event of the engine, and when the window had it (`time.perf_counter` of then)."""

    time: float
    event: messages.Event


def encode(frames: Iterable[Frame]) -> bytes:
    """One line a frame; the first holds everything."""
    writer = _Writer()
    lines = (json.dumps(writer.line(frame), separators=(",", ":")) for frame in frames)
    return "".join(line + "\n" for line in lines).encode()


def decode(data: bytes) -> Iterator[Frame]:
    """The frames of `encode`; a last line that is not complete is left out. Raises ValueError at
    a line that is none of ours."""
    reader = _Reader()
    for line in data.split(b"\n")[:-1]:
        try:
            yield reader.frame(json.loads(line))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a frame: {error!r}") from error


# Writing --------------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self._before: dict[str, Any] = {}  # what was written last of each part
        self._num_tokens: dict[str, int] = {}  # of each request: token events written so far

    def line(self, frame: Frame) -> Json:
        event = frame.event
        match event:
            case messages.SnapshotEvent(snapshot):
                kind, body = "snapshot", self._snapshot(snapshot)
            case messages.OutputEvent():
                kind, body = "ended", _ended(event)
            case messages.Loaded(config, model, plan, _):
                kind = "loaded"
                body = {
                    "config": _config(config), "model": dataclasses.asdict(model),
                    "plan": dataclasses.asdict(plan),
                }  # fmt: skip
            case messages.Reconfigured(config, change, seconds):
                kind = "reconfigured"
                body = {"config": _config(config), "change": change, "seconds": seconds}
            case messages.PeaksMeasured(peaks):
                kind = "peaks"
                body = {"peaks": None if peaks is None else dataclasses.asdict(peaks)}
            case messages.EngineCrashed(error):
                kind, body = "crashed", {"error": list(error)}
            case messages.Unloaded():
                kind, body = "unloaded", {}
            case _:
                raise ValueError(f"{type(event).__name__} is not recorded")
        return {"t": frame.time, "k": kind, **body}

    def _snapshot(self, s: EngineSnapshot) -> Json:
        return {
            "time": s.time,
            "step_index": s.step_index,
            "config": self._changed("config", s.config, _config),
            "model": self._changed("model", s.model, dataclasses.asdict),
            "plan": self._changed("plan", s.memory.plan, dataclasses.asdict),
            "memory": [getattr(s.memory, name) for name in _MEMORY],
            "counters": dataclasses.asdict(s.counters),
            "requests": [self._request(request) for request in s.requests],
            "blocks": self._changed("blocks", s.blocks, self._blocks),
            "steps": [_step(step) for step in s.steps],
            "ttft": s.ttft,
            "itl": s.itl,
            "speculation": self._changed("speculation", s.speculation, _speculation),
            "gpus": self._changed("gpus", s.gpus, lambda gpus: [*map(dataclasses.asdict, gpus)]),
            "threads": self._changed("threads", s.threads, _threads),
        }

    def _changed(self, name: str, value: Any, write: Callable[[Any], Any]) -> Any:
        """None where the part is that of the line before."""
        before = self._before.get(name)
        same = before is value or (name != "blocks" and before == value)  # arrays do not compare
        if name in self._before and same:
            return None
        written = write(value)
        self._before[name] = value
        return written

    def _request(self, r: RequestSnapshot) -> list[Any]:
        known = self._num_tokens.get(r.request_id, 0)
        self._num_tokens[r.request_id] = len(r.times.tokens)
        return [
            r.request_id, r.state, r.num_prompt_tokens, r.num_cached_tokens,
            r.num_computed_tokens, r.num_output_tokens, r.num_blocks, r.num_preemptions,
            r.finish_reason, r.times.arrival, r.times.first_scheduled, r.times.finished,
            r.times.tokens[known:],
        ]  # fmt: skip

    def _blocks(self, blocks: BlockSnapshot) -> Json:
        before: BlockSnapshot | None = self._before.get("blocks")
        arrays = {}
        for name in _ARRAYS:
            old = None if before is None else getattr(before, name)
            arrays[name] = _array_change(old, getattr(blocks, name))
        names = {"owners": blocks.owners, "tables": blocks.tables}
        return {"size": blocks.block_size, **names, **arrays}


def _array_change(old: NDArray | None, new: NDArray) -> list[Any]:
    """[values] of a whole array, or [places, values there] of what is different."""
    if old is None or len(old) != len(new):
        return [new.astype(np.int64).tolist()]
    places = np.flatnonzero(old != new)
    return [places.tolist(), new[places].astype(np.int64).tolist()]


def _ended(event: messages.OutputEvent) -> Json:
    times = event.times
    assert event.finish_reason is not None and times is not None
    return {
        "id": event.request_id, "time": event.time, "step_index": event.step_index,
        "prompt": event.num_prompt_tokens, "cached": event.num_cached_tokens,
        "reason": event.finish_reason,
        "times": [times.arrival, times.first_scheduled, times.finished, list(times.tokens)],
    }  # fmt: skip


def _step(s: StepRecord) -> list[Any]:
    return [
        s.index, s.start, s.duration, s.entries, s.num_running, s.num_waiting, s.preempted,
        s.finished, s.schedule_s, s.model_s, s.sample_s, s.commit_s, s.draft_s,
        s.held_back, s.kv_usage, s.num_threads, s.exchange_s,
    ]  # fmt: skip


def _speculation(figures: SpeculationSnapshot | None) -> Json:
    """{} where nothing drafts: null would be "as before"."""
    return {} if figures is None else dataclasses.asdict(figures)


def _threads(figures: ThreadFigures | None) -> Json:
    return {} if figures is None else figures._asdict()


def _config(config: Any) -> Json:
    return {name: getattr(config, name) for name in SETTINGS if hasattr(config, name)}


_MEMORY = tuple(f.name for f in dataclasses.fields(MemorySnapshot) if f.name != "plan")
_FEWEST_MEMORY = _MEMORY.index("host_weights")  # what is in RAM was added later


# Reading --------------------------------------------------------------------------------------


class _Reader:
    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._tokens: dict[str, tuple[TokenEvent, ...]] = {}

    def frame(self, line: Json) -> Frame:
        return Frame(float(line["t"]), self._event(line["k"], line))

    def _event(self, kind: str, line: Json) -> messages.Event:
        match kind:
            case "snapshot":
                return messages.SnapshotEvent(self._snapshot(line))
            case "ended":
                return _read_ended(line)
            case "loaded":
                config, model = _read_config(line["config"]), _read_model(line["model"])
                return messages.Loaded(config, model, MemoryPlan(**line["plan"]))
            case "reconfigured":
                change = None if line["change"] is None else Change(line["change"])
                config = _read_config(line["config"])
                return messages.Reconfigured(config, change, float(line["seconds"]))
            case "peaks":
                peaks = line["peaks"]
                return messages.PeaksMeasured(None if peaks is None else Peaks(**peaks))
            case "crashed":
                return messages.EngineCrashed(ErrorInfo(*line["error"]), "")
            case "unloaded":
                return messages.Unloaded()
        raise ValueError(f"unknown kind of frame {kind!r}")

    def _snapshot(self, line: Json) -> EngineSnapshot:
        plan = self._as_before("plan", line, lambda values: MemoryPlan(**values))
        memory = _read_memory(line["memory"])
        return EngineSnapshot(
            time=line["time"],
            step_index=line["step_index"],
            config=self._as_before("config", line, _read_config),
            model=self._as_before("model", line, _read_model),
            requests=tuple(self._request(request) for request in line["requests"]),
            blocks=self._as_before("blocks", line, self._blocks),
            memory=MemorySnapshot(plan=plan, **memory),
            counters=Counters(**line["counters"]),
            steps=tuple(_read_step(step) for step in line["steps"]),
            ttft=tuple(Sample(*sample) for sample in line["ttft"]),
            itl=tuple(Sample(*sample) for sample in line["itl"]),
            speculation=self._as_before("speculation", line, _read_speculation),
            gpus=self._as_before("gpus", {"gpus": [], **line}, _read_gpus),  # later than others
            threads=self._as_before("threads", {"threads": {}, **line}, _read_threads),
        )

    def _as_before(self, name: str, line: Json, read: Callable[[Any], Any]) -> Any:
        if line[name] is not None:
            self._before[name] = read(line[name])
        return self._before[name]

    def _request(self, fields: list[Any]) -> RequestSnapshot:
        (request_id, state, prompt, cached, computed, output, blocks, preemptions, reason,
         arrival, scheduled, finished, tokens) = fields  # fmt: skip
        events = self._tokens.get(request_id, ()) + tuple(TokenEvent(*e) for e in tokens)
        self._tokens[request_id] = events
        return RequestSnapshot(
            request_id, RequestState(state), prompt, cached, computed, output, blocks, preemptions,
            RequestTimes(arrival, scheduled, events, finished),
            None if reason is None else FinishReason(reason),
        )  # fmt: skip

    def _blocks(self, values: Json) -> BlockSnapshot:
        before: BlockSnapshot | None = self._before.get("blocks")
        arrays: dict[str, NDArray] = {}
        for name in _ARRAYS:
            change, dtype = values[name], _DTYPES.get(name, np.int32)
            if len(change) == 1:
                arrays[name] = np.array(change[0], dtype)
            else:
                assert before is not None
                arrays[name] = np.array(getattr(before, name))
                arrays[name][np.array(change[0], np.int64)] = change[1]
        return BlockSnapshot(
            block_size=values["size"],
            owners=tuple(values["owners"]),
            tables=tuple(tuple(table) for table in values["tables"]),
            **arrays,
        )


def _read_memory(values: list[int]) -> dict[str, int]:
    if not _FEWEST_MEMORY <= len(values) <= len(_MEMORY):
        raise ValueError(f"not a frame: {len(values)} figures of memory")
    return dict(zip(_MEMORY, values, strict=False))  # older recordings have not the last ones


def _read_ended(line: Json) -> messages.OutputEvent:
    arrival, scheduled, finished, tokens = line["times"]
    return messages.OutputEvent(
        line["id"], "", (), line["time"], line["step_index"], line["prompt"], line["cached"],
        finish_reason=FinishReason(line["reason"]),
        times=RequestTimes(arrival, scheduled, tuple(TokenEvent(*e) for e in tokens), finished),
    )  # fmt: skip


def _read_step(fields: list[Any]) -> StepRecord:
    (index, start, duration, entries, running, waiting, preempted, finished, schedule, model,
     sample, commit, draft, *later) = fields  # fmt: skip
    held_back = later[0] if later else ()  # not in older recordings
    kv_usage = later[1] if len(later) > 1 else None
    num_threads = later[2] if len(later) > 2 else 0
    exchange_s = later[3] if len(later) > 3 else 0.0
    return StepRecord(
        index, start, duration, tuple(StepEntry(*entry) for entry in entries), running, waiting,
        tuple(preempted), tuple(finished), schedule, draft, model, sample, commit,
        tuple(held_back), kv_usage, num_threads, exchange_s,
    )  # fmt: skip


def _read_threads(values: Json) -> ThreadFigures | None:
    if not values:
        return None
    found = tuple(ThreadsOf(*one) for one in values["found"])
    return ThreadFigures(**{**values, "found": found})


def _read_speculation(values: Json) -> SpeculationSnapshot | None:
    if not values:
        return None
    gain = values["speed_up"]
    return SpeculationSnapshot(
        **{
            **values,
            "drafted_per_position": tuple(values["drafted_per_position"]),
            "accepted_per_position": tuple(values["accepted_per_position"]),
            "speed_up": None if gain is None else SpeedUp(*gain),
        }
    )


def _read_gpus(values: list[Json]) -> tuple[GpuFigures, ...]:
    return tuple(
        GpuFigures(**{**gpu, "processes": tuple(GpuProcess(**p) for p in gpu["processes"])})
        for gpu in values
    )


def _read_config(values: Json) -> EngineConfig:
    """Settings that this version does not have are left out: the views do not need them."""
    known = {name: value for name, value in values.items() if name in SETTINGS}
    return EngineConfig(**known)


def _read_model(values: Json) -> ModelInfo:
    return ModelInfo(**{**values, "notices": tuple(values["notices"])})
