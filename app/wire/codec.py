"""Commands and events as a kind and bytes, and back. No pickle: types are checked.

Frequent records are arrays, snapshots are changes (`snapshots`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from app.wire.protocol import MAX_ID, ProtocolError
from app.wire.snapshots import (
    STEP,
    ArrayForm,
    Here,
    SnapshotReader,
    SnapshotWriter,
    WireSnapshot,
    maybe,
    read_samples,
    read_steps,
    shifted_times,
)
from engine import messages as m
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError, InferdeckError
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, PackedTokens, Sample, StepRecord

OUTPUT = ArrayForm(m.OutputEvent)


class CancelLoad(NamedTuple):
    """Cancel the running load: `cancel_load` of the engine's thread."""


class History(NamedTuple):
    """Steps and samples from before the window attached, oldest first, in pieces. The first
    snapshot follows. `past`: sparse snapshots with figures only."""

    steps: tuple[StepRecord, ...] = ()
    ttft: tuple[Sample, ...] = ()
    itl: tuple[Sample, ...] = ()
    past: tuple[EngineSnapshot, ...] = ()


WireCommand = m.Command | CancelLoad
WireEvent = m.Event | History
Message = tuple[str, bytes]


class _Load(msgspec.Struct):
    config: dict[str, Any]


class _AddRequest(msgspec.Struct):
    request_id: str
    prompt: str | tuple[int | dict[str, str], ...]
    params: SamplingParams
    begin_with: tuple[int, ...] = ()
    model: str | None = None


class _History(msgspec.Struct, array_like=True):
    steps: tuple[STEP.wire, ...] = ()  # type: ignore[name-defined]
    ttft: tuple[Sample, ...] = ()
    itl: tuple[Sample, ...] = ()
    past: tuple[WireSnapshot, ...] = ()


_COMMANDS: dict[str, Any] = {
    "load": _Load, "unload": m.Unload, "add": _AddRequest, "abort": m.Abort,
    "reconfigure": dict[str, Any], "inspect": m.InspectBlock, "peaks": m.MeasurePeaks,
    "profile": m.ProfileSteps, "count": m.CountTokens, "cancel": dict[str, Any],
}  # fmt: skip
EVENTS: dict[str, Any] = {
    "progress": m.LoadProgress, "loaded": m.Loaded, "load-failed": m.LoadFailed,
    "unloaded": m.Unloaded, "output": OUTPUT.wire, "failed": m.RequestFailed,
    "reconfigured": m.Reconfigured, "reconfigure-failed": m.ReconfigureFailed,
    "snapshot": WireSnapshot, "block": m.BlockInspected, "peaks": m.PeaksMeasured,
    "profile": m.StepsProfiled, "counted": m.TokensCounted, "crashed": m.EngineCrashed,
    "history": _History, "made-room": m.MadeRoom, "stalled": m.Stalled, "recovered": m.Recovered,
}  # fmt: skip
OPTIONAL: dict[type, str] = {m.Stalled: "stalled", m.Recovered: "recovered"}
"""Events that some windows of this protocol version cannot read: see `Hello.reads`."""
PLAIN: dict[type, str] = {
    kind: name
    for name, kind in (*_COMMANDS.items(), *EVENTS.items())
    if isinstance(kind, type) and kind.__module__ == m.__name__
}
"""Kinds of the messages that are encoded as they are. A reader ignores settings unknown to it."""


def _plainly(value: Any) -> Any:
    if isinstance(value, PackedTokens):
        return tuple(value)
    raise TypeError(f"cannot encode {type(value).__name__}")


_encode = msgspec.msgpack.Encoder(enc_hook=_plainly).encode
_command_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in _COMMANDS.items()}
_event_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in EVENTS.items()}


# Commands -------------------------------------------------------------------------------------


def wanted_values(config: EngineConfig) -> dict[str, Any]:
    """A window's requested settings without defaults: an older server may not know them."""
    return {name: pair[0] for name, pair in config.differences(EngineConfig()).items()}


def asked_config(values: Mapping[str, Any]) -> EngineConfig:
    """A window's requested settings. Raises ProtocolError, also for an unknown setting."""
    checked_changes(values)
    return EngineConfig(**values)


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ProtocolError unless all are settings with values of the right type and range."""
    for name, value in values.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(f"Unknown engine setting {name[:60]!r}.")
        try:
            setting.check(value)
        except ConfigError as error:
            raise ProtocolError(str(error)) from None
    return dict(values)


def write_command(command: WireCommand) -> Message:
    """Raises ValueError for Stop, which is never sent."""
    match command:
        case m.Load(config):
            return "load", _encode({"config": wanted_values(config)})
        case m.AddRequest(request_id, prompt, params, begin_with, model=model):
            return "add", _encode(_AddRequest(request_id, prompt, params, begin_with, model))  # type: ignore[arg-type]
        case m.Reconfigure(changes):
            return "reconfigure", _encode(dict(changes))
        case CancelLoad():
            return "cancel", _encode({})
        case m.Stop():
            raise ValueError("Stop is never sent to another process")
    return PLAIN[type(command)], _encode(command)


def read_command(kind: str, body: msgspec.Raw | bytes) -> WireCommand:
    """Raises ProtocolError."""
    match _decoded(_command_decoders, kind, body):
        case _Load(config):
            return m.Load(asked_config(config))
        case _AddRequest() as add:
            _check_id(add.request_id)
            return m.AddRequest(
                add.request_id, _prompt(add.prompt), add.params, add.begin_with, model=add.model
            )
        case m.Abort() as abort:
            _check_id(abort.request_id)
            return abort
        case dict() as values:
            return m.Reconfigure(checked_changes(values)) if kind == "reconfigure" else CancelLoad()
        case command:
            return command


def _prompt(prompt: str | tuple[int | dict[str, str], ...]) -> m.Prompt:
    if isinstance(prompt, str):
        return prompt
    is_message = lambda part: isinstance(part, Mapping) and set(part) == {"role", "content"}
    if all(isinstance(part, int) for part in prompt) or all(map(is_message, prompt)):
        return prompt  # type: ignore[return-value]
    raise ProtocolError("A prompt must be text, token ids or messages.")


def _check_id(request_id: str) -> None:
    if not 0 < len(request_id) <= MAX_ID or not request_id.isprintable():
        raise ProtocolError(f"A request id must have 1 to {MAX_ID} printable characters.")


# Events ---------------------------------------------------------------------------------------


class EventWriter:
    """Writes for one reader: snapshots are changes since the last one it received."""

    def __init__(self) -> None:
        self._snapshots, self._past = SnapshotWriter(), SnapshotWriter()

    def write(self, event: WireEvent) -> Message:
        match event:
            case m.SnapshotEvent(snapshot):
                return "snapshot", _encode(self._snapshots.write(snapshot))
            case m.OutputEvent():
                return "output", _encode(OUTPUT.values(event))
            case History(steps, ttft, itl, past):
                before = tuple(map(self._past.write, past))
                return "history", _encode((tuple(map(STEP.values, steps)), ttft, itl, before))
        return PLAIN[type(event)], _encode(event)


class EventReader:
    """Reads what one writer wrote, in order. `here`: the server's clock in ours."""

    def __init__(self, here: Here = lambda time: time) -> None:
        self._here = here
        self._snapshots, self._past = SnapshotReader(here), SnapshotReader(here)

    def read(self, kind: str, body: msgspec.Raw | bytes) -> WireEvent:
        """Raises ProtocolError."""
        here = self._here
        match _decoded(_event_decoders, kind, body):
            case WireSnapshot() as wire:
                return m.SnapshotEvent(self._snapshots.read(wire))
            case OUTPUT.wire() as wire:
                event = OUTPUT.record(wire)
                times = None if event.times is None else shifted_times(event.times, here)
                return dataclasses.replace(event, time=here(event.time), times=times)
            case _History(steps, ttft, itl, past):
                return History(
                    read_steps(steps, here),
                    read_samples(ttft, here),
                    read_samples(itl, here),
                    tuple(map(self._past.read, past)),
                )
            case m.BlockInspected(block, details) if details is not None:
                published = maybe(here, details.published)
                return m.BlockInspected(block, dataclasses.replace(details, published=published))
            case event:
                return event


def _decoded(decoders: dict[str, Any], kind: str, body: msgspec.Raw | bytes) -> Any:
    decoder = decoders.get(kind)
    if decoder is None:
        raise ProtocolError(f"Unknown message type: {kind[:40]!r}.")
    try:
        return decoder.decode(body)
    except InferdeckError as error:
        raise ProtocolError(str(error)) from None
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        # ValueError: text that is not UTF-8
        raise ProtocolError(f"Cannot decode {kind!r} message: {error}.") from None
