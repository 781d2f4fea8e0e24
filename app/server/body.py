"""Reads the JSON body of a request: no more than allowed, no longer than allowed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from app.server.errors import ApiError, bad_request
from app.server.options import Limits

CLOSE = {"Connection": "close"}  # the rest of the body is not read
INLINE_BYTES = 64 * 1024


async def read_json(request: Request, limits: Limits) -> Any:
    """The body as JSON. Raises ApiError: 400 not JSON, 408 too slow, 413 too large, 415 other."""
    _check_headers(request, limits)
    try:
        async with asyncio.timeout(limits.body_s):
            data = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"The body did not come within {limits.body_s:g} s.", headers=CLOSE
        ) from None
    if len(data) < INLINE_BYTES:
        return parse(data)
    return await asyncio.to_thread(parse, data)  # megabytes of JSON would hold up every stream


def parse(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise bad_request("The body is not JSON: it is not UTF-8.") from None
    except ValueError as error:
        raise bad_request(f"The body is not JSON: {error}.") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_headers(request: Request, limits: Limits) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415,
            f"The content type is {kind[:60]!r}; send the header Content-Type: application/json.",
            headers=CLOSE,
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, "Send the body without a content encoding.", headers=CLOSE)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.max_body_bytes:
        raise _too_large(limits.max_body_bytes)


async def _read(request: Request, most: int) -> bytes:
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > most:
                raise _too_large(most)
    except ClientDisconnect:
        raise ApiError(400, "The client went away.", headers=CLOSE) from None
    return bytes(data)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than the {most:,} bytes that this server takes.",
        code="request_too_large", headers=CLOSE,
    )  # fmt: skip
