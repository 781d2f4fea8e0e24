"""The lines of a recording: what is encoded is decoded, and those of earlier versions are read."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire.recording import Frame, decode, encode
from engine import messages as m
from engine.config import Change
from engine.errors import ErrorInfo
from engine.snapshot import (
    BlockSnapshot,
    EngineSnapshot,
    FinishReason,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    StepEntry,
    StepRecord,
    TokenEvent,
)
from tests.app.features.recording.samples import CARD, CONFIG, LOADED, PEAKS, THREADS
from tests.widgets import synthetic


@st.composite
def runs(draw: st.DrawFn) -> list[Frame]:
    """Snapshots in which blocks change owners and requests get tokens."""
    count, frames = draw(st.integers(1, 8)), []
    tokens: dict[str, tuple[TokenEvent, ...]] = {}
    owner = np.full(12, -1, np.int32)
    for at in range(count):
        ids = draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True))
        requests = []
        for name in ids:
            new = draw(st.integers(0, 3))
            tokens[name] = tokens.get(name, ()) + tuple(TokenEvent(at + 0.1, 1) for _ in range(new))
            times = RequestTimes(0.5, draw(st.none() | st.floats(0, 9)), tokens[name])
            requests.append(
                RequestSnapshot(
                    name, draw(st.sampled_from(list(RequestState))), 9, 1, 2, new, 3, 0, times
                )
            )
        owner = owner.copy()
        owner[draw(st.integers(0, 11))] = draw(st.integers(-2, 2))
        owner = np.minimum(owner, len(ids) - 1).astype(np.int32)  # no owner that is not there
        blocks = BlockSnapshot(
            16, tuple(ids), owner, (owner >= 0).astype(np.int32),
            np.full(12, draw(st.integers(0, 16)), np.int32), owner == -2,
            tuple((0, 1) for _ in ids),
        )  # fmt: skip
        entry = StepEntry("a", "decode", 1, 0, 0, 0, 77, 1)
        step = StepRecord(at, at + 0.3, 0.02, (entry,), 1, 0, ("b",), ("c",), 0.1, 0.2, 0.3, 0.4,
                          held_back=("d",), kv_usage=0.25, num_threads=2)  # fmt: skip
        snapshot = dataclasses.replace(
            synthetic.snapshot(at / 3), config=CONFIG, requests=tuple(requests), blocks=blocks,
            steps=(step,), ttft=(Sample(at, 0.1),), itl=(Sample(at, 0.2), Sample(at, 0.3)),
            gpus=draw(st.sampled_from([(), (CARD,), (CARD, CARD)])),
            threads=draw(st.sampled_from([None, THREADS, THREADS._replace(others=None)])),
        )  # fmt: skip
        frames.append(Frame(at / 7, m.SnapshotEvent(snapshot)))
    return frames


def assert_same(left: EngineSnapshot, right: EngineSnapshot) -> None:
    for name in ("owner", "ref_count", "fill", "hashed"):
        one, other = getattr(left.blocks, name), getattr(right.blocks, name)
        assert one.dtype == other.dtype and np.array_equal(one, other)
    assert (left.blocks.owners, left.blocks.tables) == (right.blocks.owners, right.blocks.tables)
    assert dataclasses.replace(left, blocks=right.blocks) == right


@given(runs())
def test_what_is_encoded_is_decoded(frames: list[Frame]) -> None:
    again = list(decode(encode(frames)))
    assert [frame.time for frame in again] == [frame.time for frame in frames]
    for before, after in zip(frames, again, strict=True):
        assert isinstance(before.event, m.SnapshotEvent)
        assert isinstance(after.event, m.SnapshotEvent)
        assert_same(before.event.snapshot, after.event.snapshot)


def test_a_recording_from_before_threads_were_told_is_read() -> None:
    snapshot = dataclasses.replace(synthetic.snapshot(1.0), threads=THREADS)
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(snapshot))]))
    del line["threads"]
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent) and frame.event.snapshot.threads is None


def test_a_recording_from_before_gpus_were_watched_is_read() -> None:
    first, second = (synthetic.snapshot(at) for at in (1.0, 2.0))
    data = encode([Frame(s.time, m.SnapshotEvent(s)) for s in (first, second)])
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line.pop("gpus") for line in lines] == [[], None]
    older = "".join(json.dumps(line) + "\n" for line in lines).encode()
    for frame in decode(older):
        assert isinstance(frame.event, m.SnapshotEvent) and frame.event.snapshot.gpus == ()


def test_a_divided_model_is_recorded_and_recordings_from_before_are_read() -> None:
    divided = synthetic.divided_snapshot(1.0)
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(divided))]))
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent)
    assert frame.event.snapshot.memory == divided.memory
    line["memory"] = line["memory"][:-2]
    line["plan"] = {k: v for k, v in line["plan"].items() if not k.startswith("host_")}
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent)
    read = frame.event.snapshot.memory
    assert (read.host_weights, read.host_kv_cache, read.plan.host_layers) == (0, 0, 0)
    assert (read.weights, read.wasted) == (divided.memory.weights, divided.memory.wasted)
    line["memory"] = line["memory"][:-2]
    with pytest.raises(ValueError, match="7"):
        list(decode(json.dumps(line).encode() + b"\n"))


@pytest.mark.parametrize("num_later", [0, 1, 2, 3, 4])
def test_steps_of_recordings_from_before_are_read(num_later: int) -> None:
    """The fourth is what several ranks waited for each other, which earlier versions had."""
    step = StepRecord(3, 0.5, 0.1, (), 1, 0, held_back=("d",), kv_usage=0.5, num_threads=2)
    snapshot = dataclasses.replace(synthetic.snapshot(1.0), steps=(step,))
    line = json.loads(encode([Frame(1.0, m.SnapshotEvent(snapshot))]))
    line["steps"] = [[*fields, 0.25][: 13 + num_later] for fields in line["steps"]]
    (frame,) = decode(json.dumps(line).encode() + b"\n")
    assert isinstance(frame.event, m.SnapshotEvent)
    (read,) = frame.event.snapshot.steps
    held_back = step.held_back if num_later else ()
    kv_usage = step.kv_usage if num_later > 1 else None
    num_threads = step.num_threads if num_later > 2 else 0
    assert read == dataclasses.replace(
        step, held_back=held_back, kv_usage=kv_usage, num_threads=num_threads
    )


def test_every_kind_of_event_comes_back() -> None:
    times = RequestTimes(1.0, 1.1, (TokenEvent(1.2, 1), TokenEvent(1.3, 2)), 1.3)
    ended = m.OutputEvent(
        "a", "", (), 1.3, 7, 9, 4, finish_reason=FinishReason.LENGTH, times=times, num_preemptions=3
    )
    events: list[m.Event] = [
        LOADED, m.Reconfigured(CONFIG, Change.LIVE, 0.5), m.PeaksMeasured(PEAKS),
        m.PeaksMeasured(None), ended, m.EngineCrashed(ErrorInfo("why", "do", "X"), ""),
        m.Unloaded(),
    ]  # fmt: skip
    frames = [Frame(float(at), event) for at, event in enumerate(events)]
    assert list(decode(encode(frames))) == frames


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"t":1,"k":"else"}\n', b"not json\n"])
def test_a_foreign_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        list(decode(line))
