"""Chat messages of a request body as the chat template takes them: roles and plain texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from app.server.errors import OVERLOADED, RETRY_AFTER_S, ApiError, bad_request
from app.server.options import Limits

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("text", "input_text", "output_text")


def chat_messages(given: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], ...]:
    """Messages with "role" and "content" alone. Raises ApiError 400 naming the message."""
    if not given:
        raise bad_request("messages is empty; give at least one.", "messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(given))


def _message(message: Mapping[str, Any], where: str) -> dict[str, str]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(
            f"The role of {where} is {str(role)[:40]!r}; it must be one of {', '.join(ROLES)}.",
            f"{where}.role",
        )
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise bad_request(f"{where} has {name}, which is not supported.", f"{where}.{name}")
    return {"role": ROLES[role], "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _not_text(where)
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
            kind = str(part.get("type"))[:40] if isinstance(part, dict) else "no object"
            raise bad_request(f"A part of {where} is {kind!r}; the model reads text alone.", where)
        if not isinstance(part.get("text"), str):
            raise _not_text(where)
        texts.append(part["text"])
    return "\n".join(texts)


def _not_text(where: str) -> ApiError:
    return bad_request(f"{where} is not a text, nor a list of parts with texts.", where)


CLOSE = {"Connection": "close"}  # the rest of the body is not read
INLINE_BYTES = 64 * 1024
MANY = 16


class BodyReader:
    """Reads the bodies of all calls; together they may hold `MANY` of the largest size."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_held = 0

    async def read_json(self, request: Request) -> Any:
        """The body as JSON. Raises ApiError: 400 not JSON, 408 too slow, 413 too large, 415 not
        declared as JSON, 503 too many at once."""
        _check_headers(request, self._limits)
        data = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                await self._read(request, data)
        except TimeoutError:
            raise ApiError(
                408, f"The body did not come within {self._limits.body_s:g} s.", headers=CLOSE
            ) from None
        finally:
            self._num_held -= len(data)
        if len(data) < INLINE_BYTES:
            return parse(bytes(data))
        # megabytes of JSON would hold up every stream
        return await asyncio.to_thread(parse, bytes(data))

    async def _read(self, request: Request, data: bytearray) -> None:
        most = self._limits.max_body_bytes
        try:
            async for part in request.stream():
                data += part
                self._num_held += len(part)
                if len(data) > most:
                    raise _too_large(most)
                if self._num_held > MANY * most:
                    raise ApiError(
                        503, "Too many large requests are arriving at once.",
                        kind=OVERLOADED, retry_after_s=RETRY_AFTER_S, headers=CLOSE,
                    )  # fmt: skip
        except ClientDisconnect:
            raise ApiError(400, "The client went away.", headers=CLOSE) from None


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


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than the {most:,} bytes that this server takes.",
        code="request_too_large", headers=CLOSE,
    )  # fmt: skip
