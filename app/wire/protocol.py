"""The attach protocol: its version, limits, greeting and frames."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

VERSION = 1
"""Protocol version. Increases with every incompatible change."""

PATH = "/inferdeck/v1"
STREAM_PATH = "/inferdeck/v1/stream"

MIB = 1024 * 1024
MAX_SERVER_FRAME = 64 * MIB
"""Maximum bytes of a frame to a window: a full snapshot of two million blocks."""
MAX_WINDOWS = 16
MAX_UNACKNOWLEDGED_BYTES, MAX_UNACKNOWLEDGED_FRAMES = 8 * MIB, 512
"""Limits on unacknowledged data. Later events wait, merged."""
MAX_ID = 200
"""Maximum characters of a request id."""

BEAT_S = 1.0
STALE_S = 3.0
SILENT_S = 12.0
"""A connection silent for this long counts as lost."""
HELLO_S = 10.0
SESSION_S = 60.0
"""How long a session waits for its window to reconnect."""


class ProtocolError(Exception):
    """The other side sent something invalid or forbidden. `str` is a sentence."""


class Hello(msgspec.Struct, tag="hello"):
    """`session`: the one to resume; "" for a new one. `received`: number of the last frame.
    `reads`: the optional events that the window reads; the server sends no others."""

    version: int
    program: str = ""
    session: str = ""
    received: int = 0
    reads: tuple[str, ...] = ()


class Offer(msgspec.Struct, frozen=True):
    """A model that the server can open: its name in `EngineConfig.model`."""

    name: str


class Welcome(msgspec.Struct, tag="welcome"):
    """`resumed`: the session continues; else it is new. `received`: number of the last frame
    from the window. `after_s`: how long the session had no connection."""

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
    """No connection. `for_good`: do not retry."""

    words: str
    for_good: bool = True


class Frame(msgspec.Struct, array_like=True):
    """`messages`: pairs of kind and body."""

    number: int
    ack: int
    messages: tuple[tuple[str, msgspec.Raw], ...] = ()


class Ping(msgspec.Struct, array_like=True):
    sent: float  # of the window's clock


class Pong(msgspec.Struct, array_like=True):
    """`doing` and `seconds`: the engine's pulse (`engine.heartbeat.Pulse`); None: not reported."""

    sent: float
    now: float  # of the server's clock
    doing: str = ""
    seconds: float | None = None


_answers = msgspec.msgpack.Decoder(Welcome | Refused)
_hello = msgspec.msgpack.Decoder(Hello)
_frame = msgspec.msgpack.Decoder(Frame)
_ping = msgspec.msgpack.Decoder(Ping)
_pong = msgspec.msgpack.Decoder(Pong)
encode = msgspec.msgpack.Encoder().encode


def read_hello(data: bytes) -> Hello:
    return _read(_hello, data, "hello")


def read_answer(data: bytes) -> Welcome | Refused:
    return _read(_answers, data, "hello response")


def read_frame(data: bytes) -> Frame:
    frame = _read(_frame, data, "frame")
    if frame.number < 0 or frame.ack < 0:
        raise ProtocolError("Negative frame number.")
    return frame


def read_ping(data: bytes) -> Ping:
    return _read(_ping, data, "ping")


def read_pong(data: bytes) -> Pong:
    return _read(_pong, data, "pong")


def _read(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    """Raises ProtocolError, like every function that reads."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"Cannot decode {what}: {error}.") from None
