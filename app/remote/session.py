"""What the server keeps of one window: what it was not sent yet, what it has not heard, its
requests. It outlives the window's line for a while."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress

from app.remote.codec import EventWriter, Message, WireEvent
from app.remote.ledger import Ledger
from app.remote.outbox import Outbox

PIECE_BYTES = 256 * 1024
"""A frame is sent when it holds so much."""


class Session:
    """All of it belongs to the server's loop."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(18)
        self.ledger = Ledger()
        self.requests: set[str] = set()
        """Those of the window that have not ended."""
        self.num_asked = 0
        """Questions that were not answered yet."""
        self.line: object | None = None
        self.cut_at: float | None = None
        self.is_ended = False
        self._outbox = Outbox()
        self._writer = EventWriter()
        self._changed = asyncio.Event()

    @property
    def cut_for_s(self) -> float:
        return 0.0 if self.cut_at is None else time.monotonic() - self.cut_at

    @property
    def is_full(self) -> bool:
        """Whether more waits for the window than it may cost."""
        return self._outbox.is_full

    @property
    def may_send(self) -> bool:
        return bool(self._outbox) and self.ledger.has_room

    @property
    def is_urgent(self) -> bool:
        return self._outbox.is_urgent and self.ledger.has_room

    def tell(self, event: WireEvent) -> None:
        self._outbox.put(event)
        self._changed.set()

    def heard(self) -> None:
        """An acknowledgement may have made room."""
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Until something happened that may be worth a frame, or for so long."""
        with suppress(TimeoutError):
            # not wait_for: on Python 3.11 it may swallow that the task is cancelled
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def frame(self) -> bytes:
        """The next that waits, numbered."""
        messages: list[Message] = []
        size = 0
        while size < PIECE_BYTES and (event := self._outbox.next()) is not None:
            message = self._writer.write(event)
            messages.append(message)
            size += len(message[1])
        return self.ledger.seal(messages)
