"""Records as arrays of their fields: what comes hundreds of times a second is named once, here."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError

T = TypeVar("T")


class ArrayForm(Generic[T]):
    """A dataclass as the array of its fields. Fields that came later are last and have a default,
    so that an array without them is read too."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        hints = typing.get_type_hints(kind)
        self._get = attrgetter(*(f.name for f in fields))
        self.wire = msgspec.defstruct(
            f"{kind.__name__}Array",
            [_declared(f, hints[f.name]) for f in fields],
            array_like=True,
        )

    def values(self, record: T) -> tuple[Any, ...]:
        """To be encoded."""
        return self._get(record)

    def record(self, wire: Any) -> T:
        """Of what was decoded as `wire`."""
        return self.kind(*msgspec.structs.astuple(wire))


def _declared(field: dataclasses.Field[Any], hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.name, hint, field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.name, hint, msgspec.field(default_factory=field.default_factory)
    return field.name, hint


VERSION = 1
"""Of this protocol. Raised with every change that the other side would misread."""

PATH = "/inferdeck/v1"
STREAM_PATH = "/inferdeck/v1/stream"

MIB = 1024 * 1024
MAX_SERVER_FRAME = 64 * MIB
"""Of a frame to a window: a whole snapshot of two million blocks."""
MAX_WINDOWS = 16
MAX_UNHEARD_BYTES, MAX_UNHEARD_FRAMES = 8 * MIB, 512
"""Sent and not acknowledged. What comes after it waits, merged."""
MAX_ID = 200
"""Characters of the name of a request."""

BEAT_S = 1.0
STALE_S = 3.0
SILENT_S = 12.0
"""After so long without a word a line counts as cut."""
HELLO_S = 10.0
SESSION_S = 60.0
"""How long a session waits for a window that lost its line."""


class ProtocolError(Exception):
    """The other side said what cannot be read, or what is not allowed. `str` is a sentence."""


class Hello(msgspec.Struct, tag="hello"):
    """`session`: the one to go on with; "" for a new one. `received`: number of the last frame."""

    version: int
    program: str = ""
    session: str = ""
    received: int = 0


class Offer(msgspec.Struct, frozen=True):
    """A model that the server would open: what it is called in `EngineConfig.model`."""

    name: str


class Welcome(msgspec.Struct, tag="welcome"):
    """`resumed`: the session went on; else it is a new one. `received`: number of the last frame
    that came from the window. `after_s`: for how long the line of the session was cut."""

    version: int
    program: str
    session: str
    resumed: bool
    received: int
    after_s: float = 0.0
    offers: tuple[Offer, ...] = ()
    may_control: bool = True
    trusts_paths: bool = False


class Refused(msgspec.Struct, tag="refused"):
    """No line. `for_good`: trying again is no use."""

    words: str
    for_good: bool = True


class Frame(msgspec.Struct, array_like=True):
    """`messages`: pairs of a kind and its body."""

    number: int
    ack: int
    messages: tuple[tuple[str, msgspec.Raw], ...] = ()


class Ping(msgspec.Struct, array_like=True):
    sent: float  # of the window's clock


class Pong(msgspec.Struct, array_like=True):
    sent: float
    now: float  # of the server's clock


_answers = msgspec.msgpack.Decoder(Welcome | Refused)
_hello = msgspec.msgpack.Decoder(Hello)
_frame = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder()


def encode(words: msgspec.Struct) -> bytes:
    return _encoder.encode(words)


def read_hello(data: bytes) -> Hello:
    """Raises ProtocolError."""
    return _read(_hello, data, "the greeting")


def read_answer(data: bytes) -> Welcome | Refused:
    """Raises ProtocolError."""
    return _read(_answers, data, "the answer to the greeting")


def read_frame(data: bytes) -> Frame:
    """Raises ProtocolError."""
    frame = _read(_frame, data, "a frame")
    if frame.number < 0 or frame.ack < 0:
        raise ProtocolError("A frame has a negative number.")
    return frame


def _read(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"Cannot read {what}: {error}.") from None


def config_values(config: Any) -> dict[str, Any]:
    """To be encoded; {} where a source has no settings."""
    return {name: getattr(config, name) for name in SETTINGS if hasattr(config, name)}


def wanted_values(config: EngineConfig) -> dict[str, Any]:
    """What a window asks for: a setting at its default is not named, so that a server that does not
    know it yet need not refuse."""
    return {name: pair[0] for name, pair in config.differences(EngineConfig()).items()}


def told_config(values: Mapping[str, Any]) -> EngineConfig:
    """What the server says of itself. A setting that this version does not know is left out: no
    view shows it. Raises ProtocolError."""
    return _config({name: value for name, value in values.items() if name in SETTINGS})


def asked_config(values: Mapping[str, Any]) -> EngineConfig:
    """What a window asks for. Raises ProtocolError, also for a name that is no setting."""
    checked_changes(values)
    return _config(values)


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ProtocolError unless all are settings with values of the right type and range."""
    for name, value in values.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(f"{name[:60]!r} is no setting of this engine.")
        _check(lambda setting=setting, value=value: setting.check(value))
    return dict(values)


def _config(values: Mapping[str, Any]) -> EngineConfig:
    return _check(lambda: EngineConfig(**values))


def _check(make: Any) -> Any:
    try:
        return make()
    except ConfigError as error:
        raise ProtocolError(f"{error.cause} {error.remedy}".strip()) from None
