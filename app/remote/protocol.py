"""The first words of both sides of a line, its frames and its limits.

    window                                     server
    Hello (version, session, received)  -->
                                        <--    Welcome (session, resumed, received)
                                               or Refused (why), and the end
    Frame (number, ack, messages)       -->    every command once
                                        <--    Frame (number, ack, messages): every event once
    Frame (0, ack, [ping])              -->
                                        <--    Frame (0, ack, [pong])

A number counts the frames that carry something that must arrive; number 0 is none of them. `ack` is
the last number that came from the other side. A window that lost its line says in its next Hello
up to where it has heard the server, and goes on from there.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

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
