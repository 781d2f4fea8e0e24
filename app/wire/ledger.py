"""Frame numbers, acknowledgements and resending for one side of a session.

A frame stays here until the other side acknowledges its number. After a reconnect the other side
names the last frame that it received; later frames are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from app.wire.protocol import MAX_UNHEARD_BYTES, MAX_UNHEARD_FRAMES, Frame, ProtocolError, encode


class Sent(NamedTuple):
    """`about`: the owner's note on the frame."""

    number: int
    data: bytes
    about: Any


class Ledger:
    """One per side of a session; it outlives connections."""

    def __init__(self) -> None:
        self._number = 0
        self._heard = 0
        self._unheard: deque[Sent] = deque()
        self._unheard_bytes = 0

    @property
    def heard(self) -> int:
        """The number of the last frame that came."""
        return self._heard

    @property
    def has_room(self) -> bool:
        """Whether so little is unacknowledged that more may be sent."""
        frames, size = len(self._unheard), self._unheard_bytes
        return frames < MAX_UNHEARD_FRAMES and size < MAX_UNHEARD_BYTES

    @property
    def unheard(self) -> tuple[Sent, ...]:
        return tuple(self._unheard)

    def seal(self, messages: Sequence[tuple[str, bytes]], about: Any = None) -> bytes:
        """A frame that will arrive."""
        self._number += 1
        data = self._frame(self._number, messages)
        self._unheard.append(Sent(self._number, data, about))
        self._unheard_bytes += len(data)
        return data

    def note(self, messages: Sequence[tuple[str, bytes]] = ()) -> bytes:
        """A frame that may be lost; it acknowledges what was heard."""
        return self._frame(0, messages)

    def take(self, frame: Frame) -> tuple[tuple[str, msgspec.Raw], ...]:
        """The messages of a frame that came; () where it came before. Raises ProtocolError where
        one is missing before it, or an acknowledgement is of what was never sent."""
        self.acknowledge(frame.ack)
        if frame.number == 0:
            return frame.messages
        if frame.number > self._heard + 1:
            raise ProtocolError(f"Frame {self._heard + 1} is missing before {frame.number}.")
        if frame.number <= self._heard:
            return ()
        self._heard = frame.number
        return frame.messages

    def acknowledge(self, number: int) -> None:
        """The other side has heard everything up to `number`."""
        if number > self._number:
            raise ProtocolError(f"Frame {number} is acknowledged; the last sent is {self._number}.")
        while self._unheard and self._unheard[0].number <= number:
            self._unheard_bytes -= len(self._unheard.popleft().data)

    def missing(self, received: int) -> list[bytes]:
        """The frames after `received`, of which the other side has heard the last. Raises
        ProtocolError where they are not here."""
        first = self._unheard[0].number if self._unheard else self._number + 1
        if received < first - 1:
            raise ProtocolError(f"The frames from {received + 1} on are no longer available.")
        self.acknowledge(received)
        return [sent.data for sent in self._unheard]

    def _frame(self, number: int, messages: Sequence[tuple[str, bytes]]) -> bytes:
        raw = tuple((kind, msgspec.Raw(body)) for kind, body in messages)
        return encode(Frame(number, self._heard, raw))
