"""Runs a function in a process of its own, with limits on time and memory.

For work that may crash, never end or use all memory: classes, templates and patterns of others. The
process imports only what the function needs, and never the window. Arguments and results are plain
data (msgpack), so that a process which misbehaves cannot run code in this one.

    run_limited(f, 1, 2, seconds=10, max_bytes=2**30)
      request: function, arguments, limits  -->  standard input
      answer: result or error               <--  standard output; what f prints goes to its log
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from engine import errors
from engine.errors import ErrorInfo, InferdeckError, is_out_of_memory
from engine.python_process import LOOK_S, PythonProcess, end_text, limits
from engine.units import bytes_text, duration_text

_LOG_BYTES = 2000


class LimitExceeded(InferdeckError):  # noqa: N818 - what happened, not whose mistake it was
    """The function needed more time or memory than it was given."""


class ProcessCrashed(InferdeckError):  # noqa: N818
    """The process ended without an answer, or could not be started."""


class TargetFailed(InferdeckError):  # noqa: N818
    """The function raised an exception that is not ours; `kind` is its type."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind


class _Request(msgspec.Struct):
    module: str
    name: str
    args: list[Any]
    seconds: float
    max_bytes: int


class _Answer(msgspec.Struct):
    result: Any = None
    error: ErrorInfo | None = None
    is_ours: bool = False
    is_memory: bool = False


def run_limited(
    target: Callable[..., Any],
    *args: Any,
    seconds: float,
    max_bytes: int,
    check: Callable[[], None] = lambda: None,
) -> Any:
    """target(*args) of another process. Starting it takes about 0.1 s, and seconds with torch.

    target: a function of a module. args, result: numbers, strings, bytes, lists, dicts, None (a
    tuple arrives as a list). max_bytes: of private memory, with what the target imports. check: is
    called every 50 ms; what it raises ends the process.

    Raises LimitExceeded, ProcessCrashed, an InferdeckError that the target raised, or TargetFailed
    for another exception of it. No process remains.
    """
    request = _Request(target.__module__, target.__qualname__, list(args), seconds, max_bytes)
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as answered,
        tempfile.TemporaryFile() as log,
    ):
        given.write(msgspec.msgpack.encode(request))
        given.seek(0)
        code = _run(given, answered, log, request, check)
        answered.seek(0)
        try:
            answer = msgspec.msgpack.decode(answered.read(), type=_Answer)
        except msgspec.MsgspecError:
            how = _end(code, log)
            raise ProcessCrashed(f"The process ended without a result: {how}.") from None
    if answer.error is None:
        return answer.result
    if answer.is_memory:
        raise _too_much_memory(max_bytes)
    if answer.is_ours:
        kind = getattr(errors, answer.error.kind, InferdeckError)
        raise kind(answer.error.cause, answer.error.remedy)
    raise TargetFailed(answer.error.kind, answer.error.cause)


def _run(
    given: IO[bytes], answered: IO[bytes], log: IO[bytes], request: _Request,
    check: Callable[[], None],
) -> int:  # fmt: skip
    """Exit code of the process."""
    deadline = time.monotonic() + request.seconds
    try:
        process = PythonProcess(__name__, given, answered, log)
    except OSError as error:
        raise ProcessCrashed(f"Could not start {sys.executable!r}: {error}.") from error
    try:
        while True:
            try:
                return process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                check()
            if time.monotonic() > deadline:
                allowed = duration_text(request.seconds)
                raise LimitExceeded(f"The process exceeded its limit of {allowed}.")
            if process.memory() > request.max_bytes:
                raise _too_much_memory(request.max_bytes)
    finally:
        process.end()


def _too_much_memory(max_bytes: int) -> LimitExceeded:
    return LimitExceeded(f"The process exceeded its memory limit of {bytes_text(max_bytes)}.")


def _end(code: int, log: IO[bytes]) -> str:
    """How a process ended, in words, with the last line that it printed."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
    lines = log.read().decode(errors="replace").split("\n")
    last = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
    if code < 0 or not last:
        return end_text(code)
    return f"{end_text(code)}, last output {last!r}"


def main() -> None:
    """Answer one request, in the other process."""
    import faulthandler

    answer_file = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed would spoil the answer
    faulthandler.enable()
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Request)
    with limits(request.seconds, request.max_bytes):
        answer = _answer(request)
    answer_file.write(answer)
    answer_file.flush()
    os._exit(0)  # libraries may crash at their end


def _answer(request: _Request) -> bytes:
    try:
        target: Any = importlib.import_module(request.module)
        for part in request.name.split("."):
            target = getattr(target, part)
        return msgspec.msgpack.encode(_Answer(target(*request.args)))
    except BaseException as error:
        is_ours = isinstance(error, InferdeckError)
        info = error.info() if is_ours else ErrorInfo(str(error), "", type(error).__name__)  # type: ignore[attr-defined]
        return msgspec.msgpack.encode(
            _Answer(error=info, is_ours=is_ours, is_memory=is_out_of_memory(error))
        )
