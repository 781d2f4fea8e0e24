"""Closes a connection so that the last response arrives.

A socket that is closed with unread data resets the connection, and the client loses what it has not
read yet: the response that says why. So the server ends its own side, then reads and drops what the
client still sends, within limits (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio

DRAIN_S = 10.0
DRAIN_BYTES = 64 * 2**20


class LingeringClose:
    """Starts at once. `received` drops data. The client's end, the time limit or the size limit
    closes the connection."""

    def __init__(
        self, transport: asyncio.Transport, seconds: float = DRAIN_S, most: int = DRAIN_BYTES
    ) -> None:
        self._transport, self._left = transport, most
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()  # bodies pause it
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, transport.abort)

    def received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def end(self) -> None:
        """The connection is closed."""
        self._timer.cancel()
