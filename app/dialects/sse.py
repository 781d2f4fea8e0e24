"""Server-sent events out of bytes, however they are cut (WHATWG HTML, 9.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_PENDING = 32 * 2**20
"""Bytes of an event that has not ended: no reply's piece is so long."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class TooLongError(ValueError):
    """Bytes without end that are no event."""


class SseParser:
    """`feed` gives the data of each event that is whole. Comments and other fields are left out;
    lines may end in LF, CR or both, also where the bytes are cut in between."""

    def __init__(self) -> None:
        self._line = b""  # begun, without its end
        self._data: list[bytes] = []
        self._pending = 0
        self._after_cr = False
        self._is_first = True

    def feed(self, data: bytes) -> Iterator[str]:
        """Raises TooLongError."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        if not data:
            return
        self._after_cr = data.endswith(b"\r")
        if self._is_first:
            self._is_first = False
            data = data.removeprefix(b"\xef\xbb\xbf")  # a mark of the byte order
        lines = _LINE_END.split(self._line + data if self._line else data)
        self._line = lines.pop()
        for line in lines:
            event = self._take(line)
            if event is not None:
                yield event
        if len(self._line) + self._pending > MOST_PENDING:
            raise TooLongError(f"an event of more than {MOST_PENDING // 2**20} MiB")

    def close(self) -> str | None:
        """What is whole but for the empty line behind it, which some servers leave out."""
        if self._line:
            line, self._line = self._line, b""
            self._take(line)
        return self._dispatch()

    def _take(self, line: bytes) -> str | None:
        if not line:
            return self._dispatch()
        name, colon, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ") if colon else b""
            self._data.append(value)
            self._pending += len(value)
        return None

    def _dispatch(self) -> str | None:
        if not self._data:
            return None
        text = b"\n".join(self._data).decode("utf-8", "replace")
        self._data.clear()
        self._pending = 0
        return text
