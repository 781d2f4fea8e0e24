"""How a child ended, in words."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from engine.errors import ErrorInfo

RESTART = "What was written is kept: start the engine again."
_MEMORY = (
    "Choose a smaller model, context length or cache, or close other programs; then start the "
    "engine again."
)
_REPORT = f"{RESTART} If it happens again, report it with the log."
_NATIVE = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
_WINDOWS = {
    0xC0000005: "an access violation in native code",
    0xC0000409: "a fault that native code found in itself",
    0xC00000FD: "a stack overflow",
    0xC0000017: "out of memory",
}
"""NTSTATUS values, which are exit codes there."""
_MEMORY_STATUS = 0xC0000017


def crash_of(code: int, last_lines: Sequence[str], was_ready: bool) -> ErrorInfo:
    """Why a child ended that nobody had asked to. `code`: as `subprocess` gives it, negative for a
    signal; `last_lines`: what it printed last."""
    reason, remedy = _reason(code)
    if not was_ready:
        begun = f"The engine's process did not start: {reason}."
        return ErrorInfo(_with_last(begun, last_lines), _remedy_of_start(code), "ProcessNotStarted")
    if code > 0 and reason.startswith("exit code"):
        reason = _with_last(f"{reason}.", last_lines).rstrip(".")
    return ErrorInfo(f"The engine's process ended: {reason}.", remedy, "ProcessEnded")


def _reason(code: int) -> tuple[str, str]:
    """What it was, and what to do."""
    status = code & 0xFFFFFFFF
    if status in _WINDOWS:
        is_memory = status == _MEMORY_STATUS
        return f"{_WINDOWS[status]} (0x{status:08X})", _MEMORY if is_memory else _REPORT
    if code < 0:
        name = _signal_name(-code)
        if name == "SIGKILL":
            return "killed by the system (SIGKILL), probably out of memory", _MEMORY
        if name in _NATIVE:
            return f"a fault in native code ({name})", _REPORT
        return f"ended by a signal ({name})", RESTART
    return f"exit code {code}", _REPORT if code else RESTART


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _remedy_of_start(code: int) -> str:
    if code < 0:
        return _reason(code)[1]
    return (
        "The log has all that it said. The settings can let the engine run in this program instead."
    )


def _with_last(sentence: str, lines: Sequence[str]) -> str:
    """With the last line that was printed: of a traceback that is the error."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{sentence} It said last: {last[:300]}" if last else sentence
