"""Reads request bodies as JSON, within limits of size, time and memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from app.server.errors import OVERLOADED, RETRY_AFTER_S, ApiError, bad_request
from app.server.options import Limits
from engine.units import duration_text

CLOSE = {"Connection": "close"}  # the rest of the body is not read
INLINE_BYTES = 64 * 1024
MANY = 16


class BodyReader:
    """Reads the bodies of all calls: in total at most `MANY` times the largest size."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_held = 0

    async def read_json(self, request: Request) -> Any:
        """The body as JSON. Raises ApiError: 400 not JSON, 408 too slow, 413 too large, 415 not
        declared as JSON, 503 too many at once."""
        _check_headers(request, self._limits)
        data = bytearray()
        most = self._limits.max_body_bytes
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    data += part
                    self._num_held += len(part)
                    if len(data) > most:
                        raise _too_large(most)
                    if self._num_held > MANY * most:
                        raise ApiError(
                            503, "Too many large requests at once.",
                            kind=OVERLOADED, retry_after_s=RETRY_AFTER_S, headers=CLOSE,
                        )  # fmt: skip
        except TimeoutError:
            allowed = duration_text(self._limits.body_s)
            raise ApiError(
                408, f"Request body not received within {allowed}.", headers=CLOSE
            ) from None
        except ClientDisconnect:
            raise ApiError(400, "The client disconnected.", headers=CLOSE) from None
        finally:
            self._num_held -= len(data)
        if len(data) < INLINE_BYTES:
            return parse(bytes(data))
        # megabytes of JSON would hold up every stream
        return await asyncio.to_thread(parse, bytes(data))


def parse(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_number)
    except UnicodeDecodeError:
        raise bad_request("The request body is not valid UTF-8.") from None
    except ValueError as error:
        raise bad_request(f"Invalid JSON in the request body: {error}.") from None
    except RecursionError:
        raise bad_request("The JSON is nested too deeply.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _number(text: str) -> float:
    """Clients send 5.0 for 5."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _check_headers(request: Request, limits: Limits) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415,
            f"Unsupported content type {kind[:60]!r}. Use Content-Type: application/json.",
            headers=CLOSE,
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, "Send the body without Content-Encoding.", headers=CLOSE)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.max_body_bytes:
        raise _too_large(limits.max_body_bytes)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"The request body exceeds the limit of {most:,} bytes.",
        code="request_too_large", headers=CLOSE,
    )  # fmt: skip
