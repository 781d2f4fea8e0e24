"""vLLM's OpenTelemetry traces: how long each request was computed before its first token.

    window <-- POST /v1/traces, protobuf -- vLLM    --otlp-traces-endpoint, vllm/tracing/otel.py

OTLP over HTTP (opentelemetry.io/docs/specs/otlp), of which the attributes of spans are read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

MAX_HEAD, MAX_BODY = 1 << 14, 1 << 22
AGAIN_S = 2.0
"""Until the port is tried again: a window that closes may have it still."""
_ANSWER = (b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"
           b"content-length: 0\r\n\r\n")  # fmt: skip
_ID, _PREFILL = "gen_ai.request.id", "gen_ai.latency.time_in_model_prefill"
_RESOURCES, _SCOPES, _SPANS, _ATTRIBUTES = 1, 2, 2, 9
_KEY, _VALUE, _TEXT, _DOUBLE = 1, 2, 1, 4


class Span(NamedTuple):
    """Of a request. request_id: as in the server's reply. prefill_s: from its first step to its
    first token."""

    request_id: str
    prefill_s: float


async def receive(port: int, take: Callable[[Span], None]) -> None:
    """Call `take` with each span that arrives at this port of the loopback, until cancelled."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                for span in read_spans(await _body(reader)):
                    take(span)
                writer.write(_ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of both ends has closed the connection
        except (OSError, ValueError, asyncio.LimitOverrunError) as error:
            log.warning("traces on port %d: %s", port, error)
        finally:
            writer.close()

    while True:
        try:
            server = await asyncio.start_server(serve, "127.0.0.1", port, limit=MAX_HEAD)
        except OSError as error:
            log.warning("traces on port %d: %s", port, error)
            await asyncio.sleep(AGAIN_S)
            continue
        async with server:
            await server.serve_forever()


async def _body(reader: asyncio.StreamReader) -> bytes:
    """Of the next request. Raises ValueError for one that is not of an exporter."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    names = dict(line.split(":", 1) for line in head.split("\r\n") if ":" in line)
    size = int(names.get("content-length", "").strip())
    if not head.startswith("post ") or not 0 <= size <= MAX_BODY:
        raise ValueError(f"not a request with spans of up to {MAX_BODY} bytes")
    return await reader.readexactly(size)


def read_spans(body: bytes) -> Iterator[Span]:
    """Those of requests. Raises ValueError."""
    for resource in _all(body, _RESOURCES):
        for scope in _all(resource, _SCOPES):
            for span in _all(scope, _SPANS):
                found = dict(map(_attribute, _all(span, _ATTRIBUTES)))
                name, prefill = found.get(_ID), found.get(_PREFILL)
                if isinstance(name, str) and isinstance(prefill, float) and _is_length(prefill):
                    yield Span(name, prefill)


def _is_length(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0.0


def _attribute(pair: bytes) -> tuple[str, str | float | None]:
    """Texts and doubles alone."""
    key = next(_all(pair, _KEY), b"").decode("utf-8", "replace")
    for number, value in _fields(next(_all(pair, _VALUE), b"")):
        if number == _TEXT and isinstance(value, bytes):
            return key, value.decode("utf-8", "replace")
        if number == _DOUBLE and isinstance(value, float):
            return key, value
    return key, None


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    """The messages and texts of this number."""
    for number, value in _fields(message):
        if number == wanted and isinstance(value, bytes):
            yield value


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message (protobuf.dev/programming-guides/encoding)."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        value: int | float | bytes
        if kind == 0:
            value, place = _varint(message, place)
        elif kind == 1:
            value, place = _fixed("<d", message, place)
        elif kind == 5:
            value, place = _fixed("<f", message, place)
        elif kind == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("a cut span")
            value, place = message[place : place + size], place + size
        else:
            raise ValueError(f"a span with a field of type {kind}")
        yield tag >> 3, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte, place = message[place], place + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a cut span")


def _fixed(form: str, message: bytes, place: int) -> tuple[float, int]:
    size = struct.calcsize(form)
    if place + size > len(message):
        raise ValueError("a cut span")
    return struct.unpack_from(form, message, place)[0], place + size
