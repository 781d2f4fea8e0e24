"""Errors of calls as in OpenAI's API: a status and an error object."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from engine.errors import ContextLengthError, ErrorInfo
from engine.sampling_params import SamplingParams

log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
OVERLOADED = "overloaded_error"
SERVER_ERROR = "server_error"

RETRY_AFTER_S = 1

_PARAMETERS = frozenset(SamplingParams.__dataclass_fields__)
_TOO_LONG = ContextLengthError.__name__


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The JSON of every error."""

    error: ErrorDetail


class ApiError(Exception):
    """Ends a call with `status` and an ErrorBody. `retry_after_s` goes into the Retry-After header:
    the same request may succeed then."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetail(self.message, self.kind, self.param, self.code))


def error_of(error: BaseException) -> ApiError:
    """The client's view of what ended its call: details of an unexpected error, such as a panic of
    native code, are in the log only. Raises `error` again if the task ends."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, asyncio.CancelledError | GeneratorExit):  # the client has gone
        raise error
    log.error("unhandled error in a request", exc_info=error)
    return ApiError(500, "Internal server error. See the server log.", kind=SERVER_ERROR)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def too_busy(message: str) -> ApiError:
    return ApiError(429, message, kind=OVERLOADED, code="queue_full", retry_after_s=RETRY_AFTER_S)


def unavailable(message: str, code: str = "not_ready") -> ApiError:
    return ApiError(503, message, kind=SERVER_ERROR, code=code, retry_after_s=RETRY_AFTER_S)


def failed(info: ErrorInfo) -> ApiError:
    """The error for a request that the engine refused or could not finish."""
    if info.kind in ("InvalidRequestError", _TOO_LONG):
        return refused(info)
    return ApiError(500, _text(info), kind=SERVER_ERROR, code=info.kind)


def refused(info: ErrorInfo) -> ApiError:
    """The error for an invalid request. Engine messages about a parameter begin with its name."""
    first = info.cause.split(" ", 1)[0]
    return bad_request(
        _text(info),
        param=first if first in _PARAMETERS else None,
        code="context_length_exceeded" if info.kind == _TOO_LONG else None,
    )


def _text(info: ErrorInfo) -> str:
    return f"{info.cause} {info.remedy}".strip()
