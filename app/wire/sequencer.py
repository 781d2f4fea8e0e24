"""Frame numbers, acknowledgements and resending for one side of a session.

A frame stays here until the other side acknowledges its number. After a reconnect the other side
names the last frame that it received; later frames are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from app.wire.protocol import (
    MAX_UNACKNOWLEDGED_BYTES,
    MAX_UNACKNOWLEDGED_FRAMES,
    Frame,
    ProtocolError,
    encode,
)


class Sent(NamedTuple):
    """`about`: the owner's note on the frame."""

    number: int
    data: bytes
    about: Any


class Sequencer:
    """One per side of a session; it outlives connections."""

    def __init__(self) -> None:
        self._number = 0
        self.received = 0
        """The number of the last frame received."""
        self.unacknowledged: deque[Sent] = deque()
        self._num_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether the limits on unacknowledged frames allow another."""
        frames, size = len(self.unacknowledged), self._num_bytes
        return frames < MAX_UNACKNOWLEDGED_FRAMES and size < MAX_UNACKNOWLEDGED_BYTES

    def number(self, messages: Sequence[tuple[str, bytes]], about: Any = None) -> bytes:
        """A frame that is resent until it is acknowledged."""
        self._number += 1
        data = self._frame(self._number, messages)
        self.unacknowledged.append(Sent(self._number, data, about))
        self._num_bytes += len(data)
        return data

    def unnumbered(self, messages: Sequence[tuple[str, bytes]] = ()) -> bytes:
        """A frame that may be lost; it carries the acknowledgement."""
        return self._frame(0, messages)

    def receive(self, frame: Frame) -> tuple[tuple[str, msgspec.Raw], ...]:
        """The messages of a frame; () for a duplicate. Raises ProtocolError for a gap, or an
        acknowledgement of a frame that was never sent."""
        self.acknowledge(frame.ack)
        if frame.number == 0:
            return frame.messages
        if frame.number > self.received + 1:
            raise ProtocolError(f"Expected frame {self.received + 1}, received {frame.number}.")
        if frame.number <= self.received:
            return ()
        self.received = frame.number
        return frame.messages

    def acknowledge(self, number: int) -> None:
        """The other side has received everything up to `number`."""
        if number > self._number:
            raise ProtocolError(f"Frame {number} acknowledged; last frame sent: {self._number}.")
        while self.unacknowledged and self.unacknowledged[0].number <= number:
            self._num_bytes -= len(self.unacknowledged.popleft().data)

    def resend_after(self, received: int) -> list[bytes]:
        """The frames after `received`, the last one that the other side has. Raises ProtocolError
        if they are no longer stored."""
        first = self.unacknowledged[0].number if self.unacknowledged else self._number + 1
        if received < first - 1:
            raise ProtocolError(f"Frames from {received + 1} onward are not available.")
        self.acknowledge(received)
        return [sent.data for sent in self.unacknowledged]

    def _frame(self, number: int, messages: Sequence[tuple[str, bytes]]) -> bytes:
        raw = tuple((kind, msgspec.Raw(body)) for kind, body in messages)
        return encode(Frame(number, self.received, raw))
