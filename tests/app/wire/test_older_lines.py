"""Recordings of version 0.1, and what its windows, servers and children said, are read."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.clients.attached_line import stream_url
from app.clients.target import parse_address
from app.features.recording import file as flight_file
from app.link.child_process import LogSender, Ready, parse_ready, parse_record, ready_line
from app.wire.codec import EventReader, EventWriter, read_command, write_command
from app.wire.protocol import (
    VERSION,
    Ping,
    Pong,
    Welcome,
    encode,
    read_answer,
    read_frame,
    read_hello,
)
from app.wire.sequencer import Sequencer
from tests.app.older_files import OLDER, assert_goes_on, assert_holds, older, plain

__all__ = ["older"]


def test_a_recording_has_all_its_frames(older: Path) -> None:
    recording = flight_file.read(older / "recordings" / "run.inferdeck-flight")
    assert recording.notice == ""
    assert recording.about["machine"]["cpu"] == "A processor, 8 cores"
    assert recording.about["versions"]["Inferdeck"] == "0.1.0"
    events = [frame.event for frame in recording.frames]
    assert [type(event).__name__ for event in events] == [
        "Loaded", "Unloaded", "Loaded", "EngineCrashed", "Loaded", "PeaksMeasured",
        "SnapshotEvent", "OutputEvent", "SnapshotEvent", "Reconfigured", "SnapshotEvent",
        "SnapshotEvent",
    ]  # fmt: skip
    times = [frame.time for frame in recording.frames]
    assert times == sorted(times)
    crashed, loaded, peaks, first, ended, busy, changed, _, last = map(plain, events[3:])
    assert loaded["model"]["name"] == "Tiny" and loaded["config"]["max_num_seqs"] == 8
    assert loaded["plan"]["host_layers"] == 2 and peaks["peaks"]["read_bytes_per_s"] == 3.2e12
    assert ended["finish_reason"] == "stop" and ended["text"] == "" and ended["token_ids"] == []
    assert [event["num_tokens"] for event in ended["times"]["tokens"]] == [1, 1, 1]
    assert changed["change"] == "live" and crashed["error"]["kind"] == "OutOfMemoryError"

    one = first["snapshot"]
    assert [r["state"] for r in one["requests"]] == ["running", "waiting"]
    assert one["speculation"]["accepted_per_position"] == [7, 4, 1]
    assert one["speculation"]["speed_up"]["factor"] == 1.75
    assert [gpu["name"] for gpu in one["gpus"]] == ["A card", "A part"]
    assert one["threads"]["found"][1] == {"first": 2, "last": 7, "threads": 3}
    step = one["steps"][0]
    assert (step["held_back"], step["kv_usage"]) == (["b"], 0.25)

    two = busy["snapshot"]  # what did not change is as before
    assert two["model"] == one["model"] and two["gpus"] == one["gpus"]
    assert two["blocks"]["owner"] == [0, 0, 1, -1, -2, -1, 1, -1]
    assert two["blocks"]["fill"] == [16, 7, 16, 0, 16, 0, 5, 0]
    assert two["blocks"]["tables"] == [[0, 1], [2, 6]]
    assert [len(r["times"]["tokens"]) for r in two["requests"]] == [3, 1]
    assert two["steps"][1]["entries"][1]["is_resumed"]

    end = last["snapshot"]
    assert (end["time"], end["step_index"]) == (10.75, 4)
    assert end["config"]["max_num_seqs"] == 3 and end["config"]["kv_cache_dtype"] == "k=int8,v=fp8"
    counters = end["counters"]
    assert (counters["generation_tokens"], counters["finished"]) == (5, {"stop": 1, "length": 1})
    assert end["memory"]["kv_used"] == 0 and end["memory"]["host_weights"] == 2**21
    assert end["speculation"] is None and end["threads"] is None and end["steps"] == []
    (request,) = end["requests"]
    assert request["finish_reason"] == "length" and request["times"]["finished"] == 10.45
    assert len(request["times"]["tokens"]) == 2


def transcript() -> dict[str, Any]:
    return json.loads((OLDER / "wire" / "attach.json").read_text(encoding="utf-8"))


BEATS = {"ping": Ping, "pong": Pong}


def test_the_greeting_is_read_and_the_address_is_the_same() -> None:
    said = transcript()
    assert stream_url(parse_address("http://host:8000/v1")) == f"ws://host:8000{said['path']}"
    for one, read in zip(said["said"], (read_hello, read_answer, read_answer), strict=False):
        data = bytes.fromhex(one["bytes"])
        words = read(data)
        assert type(words).__name__.lower() == one["what"]
        assert_holds(plain(words), one["means"])
        assert_goes_on(msgspec.msgpack.decode(encode(words)), msgspec.msgpack.decode(data))
        if isinstance(words, Welcome):
            assert words.version == VERSION and words.offers[0].name == "tiny"


def test_every_command_and_event_is_read_and_sent_as_before() -> None:
    """Frames of both sides, in order: snapshots among them as what changed."""
    reader, writer = EventReader(), EventWriter()
    decoded = msgspec.msgpack.decode
    sequencers = {"window": Sequencer(), "server": Sequencer()}
    kinds: dict[str, set[str]] = {"window": set(), "server": set()}
    for one in transcript()["said"]:
        if one["what"] != "frame":
            continue
        data, side = bytes.fromhex(one["bytes"]), one["from"]
        frame = read_frame(data)
        assert (frame.number, frame.ack) == (one["number"], one["ack"])
        taken = sequencers["server" if side == "window" else "window"].receive(frame)
        again = []
        for (kind, body), told in zip(taken, one["messages"], strict=True):
            assert kind == told["kind"]
            kinds[side].add(kind)
            if kind in BEATS:
                beat: Any = decoded(body, type=BEATS[kind])
                assert_holds(plain(beat), told["means"], kind)
                again.append((kind, encode(beat)))
                continue
            means: Any
            if side == "window":
                means = read_command(kind, body)
                again.append(write_command(means))
            else:
                means = reader.read(kind, body)
                again.append(writer.write(means))
            assert_holds(plain(means), told["means"], kind)
        sequencer = sequencers[side]
        sent = sequencer.number(again) if frame.number else sequencer.unnumbered(again)
        assert_goes_on(decoded(sent), decoded(data), side)
    assert kinds["window"] == {
        "load", "unload", "add", "abort", "reconfigure", "inspect", "peaks", "count", "cancel",
        "ping",
    }  # fmt: skip
    assert kinds["server"] == {
        "progress", "loaded", "load-failed", "unloaded", "output", "failed", "reconfigured",
        "reconfigure-failed", "snapshot", "block", "peaks", "counted", "crashed", "history",
        "made-room", "pong",
    }  # fmt: skip


def test_lines_of_a_child_are_read_and_written_as_before(capsys: pytest.CaptureFixture) -> None:
    ready = (OLDER / "wire" / "child.stdout").read_text(encoding="utf-8").rstrip("\n")
    assert parse_ready(ready) == Ready(41235, 4321) and ready_line(Ready(41235, 4321)) == ready
    lines = (OLDER / "wire" / "child.stderr").read_text(encoding="utf-8").split("\n")[:-1]
    loaded, printed, failed = map(parse_record, lines)
    assert printed is None and loaded is not None and failed is not None
    assert (loaded.name, loaded.levelno) == ("engine.loading", logging.INFO)
    assert (loaded.getMessage(), loaded.created) == ("loaded Tiny in 812 ms", 1_780_000_000.25)
    assert failed.levelno == logging.ERROR
    assert failed.getMessage() == "a step failed\nValueError: größer"
    LogSender().emit(loaded)
    assert capsys.readouterr().err == f"{lines[0]}\n"
