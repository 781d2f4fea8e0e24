"""What is written is read as it was, and what is no message of ours is refused in words."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.wire.blocks import BlockReader, BlockWriter
from app.wire.codec import (
    CancelLoad,
    EventReader,
    EventWriter,
    History,
    read_command,
    write_command,
)
from app.wire.protocol import ProtocolError, read_answer, read_frame, read_hello
from engine import messages as m
from engine.config import EngineConfig
from engine.snapshot import (
    BlockSnapshot,
    EngineSnapshot,
    PackedTokens,
    RequestSnapshot,
    StepRecord,
    TokenEvent,
)
from tests.app.wire.records import COMMANDS, EVENTS, block_snapshots, of
from tests.tiers import examples
from tests.widgets import synthetic

pack = msgspec.msgpack.encode


@given(COMMANDS)
def test_commands_come_as_they_went(command: m.Command) -> None:
    assert read_command(*write_command(command)) == command


def test_a_server_that_does_not_know_a_new_setting_can_load_a_model() -> None:
    """What is left at its default is not named."""
    _, body = write_command(m.Load(EngineConfig(model="/m", block_size=32)))
    assert msgspec.msgpack.decode(body) == {"config": {"model": "/m", "block_size": 32}}


def test_every_command_but_stop_can_be_sent() -> None:
    assert read_command(*write_command(CancelLoad())) == CancelLoad()
    with pytest.raises(ValueError):
        write_command(m.Stop())
    kinds = {c for c in typing.get_args(m.Command) if c is not m.Stop}
    assert len(kinds) == 9, "a new command needs its place in the codec"


def only_more(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether the tokens of each request, known by its name and arrival, only became more: no
    engine takes back what it said."""
    known = {r.request_id: r.times for r in before.requests}
    pairs = [(known[r.request_id], r.times) for r in now.requests if r.request_id in known]
    return all(
        old.arrival != new.arrival or tuple(new.tokens[: len(old.tokens)]) == tuple(old.tokens)
        for old, new in pairs
        if len(new.tokens) >= len(old.tokens)
    )


@given(st.lists(EVENTS, max_size=6))
@settings(max_examples=examples(60))
def test_events_come_as_they_went(events: list[m.Event]) -> None:
    """Snapshots among them as what changed since the one before."""
    snapshots = [event.snapshot for event in events if isinstance(event, m.SnapshotEvent)]
    assume(all(only_more(*pair) for pair in itertools.pairwise(snapshots)))
    writer, reader = EventWriter(), EventReader()
    for event in events:
        assert_same(reader.read(*writer.write(event)), event)


@given(st.lists(of(EngineSnapshot), min_size=2, max_size=4))
@settings(max_examples=examples(40))
def test_snapshots_come_as_they_went(snapshots: list[EngineSnapshot]) -> None:
    assume(all(only_more(*pair) for pair in itertools.pairwise(snapshots)))
    writer, reader = EventWriter(), EventReader()
    for snapshot in snapshots:
        event = m.SnapshotEvent(snapshot)
        assert_same(reader.read(*writer.write(event)), event)


def test_a_server_from_before_models_were_divided_is_read() -> None:
    """And one of now by a window of then: what is new stands behind all else."""
    divided = synthetic.divided_snapshot(1.0)
    here = dataclasses.replace(divided, config=EngineConfig())
    kind, body = EventWriter().write(m.SnapshotEvent(here))
    (*known, in_ram, _since, _arrivals) = msgspec.msgpack.decode(body)
    assert in_ram == [divided.memory.host_weights, divided.memory.host_kv_cache]
    plan = next(part for part in known if isinstance(part, dict) and "num_blocks" in part)
    for name in [name for name in plan if name.startswith("host_")]:
        del plan[name]
    event = EventReader().read(kind, pack(known))
    assert isinstance(event, m.SnapshotEvent)
    read = event.snapshot.memory
    assert (read.host_weights, read.host_kv_cache, read.plan.host_layers) == (0, 0, 0)
    assert (read.weights, read.kv_cache) == (divided.memory.weights, divided.memory.kv_cache)


def test_a_server_with_ranks_and_stages_is_read() -> None:
    """Earlier versions divided a model, and told of each step how long the parts waited."""
    snapshot = synthetic.snapshot(1.0)
    step = StepRecord(3, 0.5, 0.1, (), 1, 0, num_threads=2)
    sent = dataclasses.replace(snapshot, config=EngineConfig(), steps=(step,))
    kind, body = EventWriter().write(m.SnapshotEvent(sent))
    parts = msgspec.msgpack.decode(body)
    (steps,) = [part for part in parts if isinstance(part, list) and len(part) == 1]
    steps[0].append(0.25)
    told = next(part for part in parts if isinstance(part, dict) and "num_parameters" in part)
    told |= {"num_ranks": 2, "num_stages": 3}
    event = EventReader().read(kind, pack(parts))
    assert isinstance(event, m.SnapshotEvent)
    assert (event.snapshot.steps, event.snapshot.model) == ((step,), sent.model)


@given(of(History))
@settings(max_examples=examples(10))
def test_history_comes_as_it_went(history: History) -> None:
    assert_same(EventReader().read(*EventWriter().write(history)), history)


@given(of(EngineSnapshot), of(m.OutputEvent), st.floats(-100, 100))
@settings(max_examples=examples(30))
def test_times_come_in_the_readers_clock(
    snapshot: EngineSnapshot, output: m.OutputEvent, offset: float
) -> None:
    writer, reader = EventWriter(), EventReader(lambda time: time + offset)
    read: Any = reader.read(*writer.write(m.SnapshotEvent(snapshot)))
    here = read.snapshot
    assert here.time == snapshot.time + offset
    assert [s.start for s in here.steps] == [s.start + offset for s in snapshot.steps]
    assert [s.duration for s in here.steps] == [s.duration for s in snapshot.steps]
    assert [s.time for s in here.itl] == [s.time + offset for s in snapshot.itl]
    for request, before in zip(here.requests, snapshot.requests, strict=True):
        assert request.times.arrival == before.times.arrival + offset
        assert [e.time for e in request.times.tokens] == [
            e.time + offset for e in before.times.tokens
        ]
    event: Any = reader.read(*writer.write(output))
    assert event.time == output.time + offset
    assert (event.times is None) == (output.times is None)


@given(st.lists(block_snapshots(), min_size=1, max_size=6))
def test_blocks_come_as_they_went(states: list[BlockSnapshot]) -> None:
    writer, reader = BlockWriter(), BlockReader()
    for state in states:
        assert_same(reader.read(writer.write(state)), state)


def test_what_did_not_change_is_not_sent_again() -> None:
    """Of a hundred thousand blocks, few are touched by a step."""
    owner = np.full(100_000, -1, np.int32)
    zeros = np.zeros(100_000, np.int32)
    before = BlockSnapshot(16, ("a",), owner, zeros, zeros, zeros.astype(np.bool_), ((1, 2),))
    now_owner = owner.copy()
    now_owner[77] = 0
    now = dataclasses.replace(before, owner=now_owner, tables=((1, 2, 77),))
    writer, reader = BlockWriter(), BlockReader()
    whole, change = writer.write(before), writer.write(now)
    assert len(pack(whole)) > 1_000_000
    assert len(pack(change)) < 100
    reader.read(whole)
    assert_same(reader.read(change), now)
    assert writer.write(now) is None


@given(of(EngineSnapshot), of(RequestSnapshot))
@settings(max_examples=examples(5))
def test_the_times_of_a_request_are_sent_once(
    snapshot: EngineSnapshot, request: RequestSnapshot
) -> None:
    events = tuple(TokenEvent(float(i), 1) for i in range(5000))
    times = dataclasses.replace(request.times, tokens=events)
    long = dataclasses.replace(snapshot, requests=(dataclasses.replace(request, times=times),))
    writer = EventWriter()
    first = len(writer.write(m.SnapshotEvent(long))[1])
    again = len(writer.write(m.SnapshotEvent(long))[1])
    assert again < first - 5000 * 10


# What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body", "name"),
    [
        ("shell", {}, "'shell'"),
        ("load", {"config": {"model": "m", "loader": "x"}}, "'loader'"),
        ("load", {"config": {"block_size": "16"}}, "block_size is '16'"),
        ("load", {"config": {"block_size": 0}}, "block_size"),
        ("load", {}, "config"),
        ("reconfigure", {"blocksize": 1}, "'blocksize'"),
        ("reconfigure", {"max_num_seqs": [1]}, "max_num_seqs"),
        ("add", {"request_id": "a", "prompt": "p", "params": {"temperature": -1}}, "temperature"),
        ("add", {"request_id": "a", "prompt": "p", "params": {"stop": [""]}}, "stop"),
        ("add", {"request_id": "a", "prompt": [1, {"role": "r"}], "params": {}}, "prompt"),
        ("add", {"request_id": "a", "prompt": [{"role": "r"}], "params": {}}, "prompt"),
        ("add", {"request_id": "a", "prompt": 5, "params": {}}, "prompt"),
        ("add", {"request_id": "", "prompt": "p", "params": {}}, "200"),
        ("add", {"request_id": "x" * 500, "prompt": "p", "params": {}}, "200"),
        ("add", {"request_id": "a\n", "prompt": "p", "params": {}}, "200"),
        ("abort", {"request_id": 7}, "request_id"),
        ("inspect", {"block": 1.5}, "block"),
        ("count", {"key": "k"}, "text"),
    ],
)
def test_an_invalid_command_is_refused_by_name(kind: str, body: Any, name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        read_command(kind, pack(body))


@given(st.sampled_from(["load", "add", "abort", "count", "reconfigure"]), st.binary(max_size=60))
def test_any_bytes_as_a_command_end_in_words(kind: str, data: bytes) -> None:
    try:
        read_command(kind, data)
    except ProtocolError as error:
        assert str(error).endswith(".")


@given(EVENTS, st.data())
@settings(max_examples=examples(100))
def test_a_damaged_event_ends_in_words_or_in_an_event(event: m.Event, data: st.DataObject) -> None:
    kind, body = EventWriter().write(event)
    place = data.draw(st.integers(0, max(len(body) - 1, 0)))
    damaged = body[:place] + data.draw(st.binary(max_size=3)) + body[place + 1 :]
    try:
        EventReader().read(kind, damaged)
    except ProtocolError as error:
        assert str(error)


@given(st.binary(max_size=60))
def test_any_bytes_as_a_frame_end_in_words(data: bytes) -> None:
    for read in (read_frame, read_hello, read_answer):
        try:
            read(data)
        except ProtocolError as error:
            assert str(error)


def test_changes_of_what_was_never_sent_are_refused() -> None:
    zeros = np.zeros(5, np.int32)
    state = BlockSnapshot(16, ("a",), zeros, zeros, zeros, zeros.astype(np.bool_), ((1,),))
    writer = BlockWriter()
    writer.write(state)
    change = writer.write(dataclasses.replace(state, tables=((1, 2),)))
    with pytest.raises(ProtocolError):
        BlockReader().read(change)
    with pytest.raises(ProtocolError):
        BlockReader().read(None)


# Comparing -------------------------------------------------------------------------------------


def assert_same(one: Any, other: Any) -> None:
    """Arrays do not compare by ==."""
    if isinstance(one, PackedTokens) or isinstance(other, PackedTokens):
        assert one == other
        return
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for part, before in zip(one, other, strict=True):
            assert_same(part, before)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other
