"""Closes a connection so that the last response arrives.

A socket that is closed with unread data resets the connection, and the client loses what it has not
read yet: the response that says why. So the server ends its own side, then reads and drops what the
client still sends, for a limited time (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio


class LingeringClose:
    """Starts at once; the caller drops what arrives. The client's end or the time limit closes the
    connection."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()  # bodies pause it
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, transport.abort)

    def end(self) -> None:
        """The connection is closed."""
        self._timer.cancel()
