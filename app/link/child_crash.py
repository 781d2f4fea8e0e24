"""`crash_of`: why the engine's process ended, and what to do."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from engine.errors import ErrorInfo

RESTART = "Restart the engine. Your chats are kept."
_MEMORY = (
    "Choose a smaller model, context length or KV cache, or close other programs. Then restart the "
    "engine."
)
_REPORT = f"{RESTART} If this happens again, report it and attach the log."
_LOST = "Its memory stays in use. Restart the computer if the next load runs out of memory."
IN_THIS = "See the log, or set “Run engine in” to “This process” in the settings."
_NATIVE = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
_WINDOWS = {
    0xC0000005: "access violation in native code",
    0xC0000409: "fast-fail exception in native code",
    0xC00000FD: "stack overflow",
    0xC0000017: "out of memory",
}
"""NTSTATUS values, which are exit codes there."""
_MEMORY_STATUS = 0xC0000017


def crash_of(code: int | None, last_lines: Sequence[str], was_ready: bool) -> ErrorInfo:
    """Why a child ended on its own. `code`: of `subprocess`, negative for a signal, None for a
    process that is lost; `last_lines`: its last output."""
    if code is None:
        cause = "The engine process does not respond and cannot be killed."
        return ErrorInfo(cause, _LOST, "ProcessLost")
    reason, remedy = _reason(code)
    if not was_ready:
        if code >= 0:
            remedy = IN_THIS
        begun = f"The engine process did not start: {reason}."
        return ErrorInfo(_with_last(begun, last_lines), remedy, "ProcessNotStarted")
    if code > 0 and reason.startswith("exit code"):
        reason = _with_last(f"{reason}.", last_lines).rstrip(".")
    return ErrorInfo(f"The engine process exited: {reason}.", remedy, "ProcessEnded")


def _reason(code: int) -> tuple[str, str]:
    status = code & 0xFFFFFFFF
    if status in _WINDOWS:
        is_memory = status == _MEMORY_STATUS
        return f"{_WINDOWS[status]} (0x{status:08X})", _MEMORY if is_memory else _REPORT
    if code < 0:
        known = {one.value: one.name for one in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        if name == "SIGKILL":
            return "killed by the OS (SIGKILL), probably out of memory", _MEMORY
        if name in _NATIVE:
            return f"crash in native code ({name})", _REPORT
        return f"terminated by {name}", RESTART
    return f"exit code {code}", _REPORT if code else RESTART


def _with_last(sentence: str, lines: Sequence[str]) -> str:
    """Append the last output line: of a traceback it is the error."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{sentence} Last output: {last[:300]}" if last else sentence
