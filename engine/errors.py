"""Errors for users: the cause with its numbers, and the remedy."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple


class ErrorInfo(NamedTuple):
    """An error as plain data, so that it can cross a thread (or a process) as a message."""

    cause: str
    remedy: str = ""
    kind: str = "InferdeckError"

    def __str__(self) -> str:
        return f"{self.cause}\n{self.remedy}" if self.remedy else self.cause


class InferdeckError(Exception):
    """Base of all errors that users see: the cause with its numbers, and the remedy."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(f"{cause} {remedy}".strip())
        self.cause = cause
        self.remedy = remedy

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.cause, self.remedy, type(self).__name__)


class ConfigError(InferdeckError):
    """An invalid setting, or settings that exclude each other."""


class DraftModelError(ConfigError):
    """An unusable draft model: other vocabulary, too large, not named. The model itself loads."""


class InvalidRequestError(InferdeckError):
    """A request with invalid parameters, or one that can never fit."""


class ContextLengthError(InvalidRequestError):
    """A request that is longer than the context or the KV cache."""


class CheckpointError(InferdeckError):
    """An incomplete, damaged or inconsistent model folder."""


class UnsupportedModelError(InferdeckError):
    """An unsupported architecture, with the reason."""


class OutOfMemoryError(InferdeckError):
    """Not enough memory, with the needed and available bytes."""


class DiskFullError(InferdeckError):
    """Not enough disk space, with the needed and free bytes."""


class NumericalError(InferdeckError):
    """The model produced NaN or infinite logits."""


class EngineLostError(InferdeckError):
    """A change failed, and restoring the previous state failed too: nothing serves."""

    @classmethod
    def of(cls, first: BaseException, second: BaseException) -> EngineLostError:
        """`first`: of the change; `second`: of its undoing."""
        info, then = describe(first), describe(second)
        remedy = "Restart the engine."
        if info.remedy and not info.remedy.startswith("This is a bug"):
            remedy = f"{info.remedy} Then restart the engine."
        lost = "The previous settings could not be restored"
        return cls(f"{info.cause} {lost}: {then.cause}", remedy)


class LoadCancelled(InferdeckError):  # noqa: N818 - not an error to the user, a way out
    """The user cancelled loading; the partly loaded model is freed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or elsewhere. (torch raises RuntimeError on the CPU, and a
    subclass of it on GPUs; the libraries beneath it raise RuntimeError with a text.)"""
    if isinstance(error, (MemoryError, OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower()
        for words in ("out of memory", "allocate memory", "alloc_failed")
    )


_OF_GPUS = ("CUDA error: ", "Triton Error [CUDA]: ", "CUBLAS_STATUS_", "CUDNN_STATUS_")


def is_gpu_fault(error: BaseException) -> bool:
    """Whether a GPU, its driver or a kernel failed. Most such errors end the use of the GPU in this
    process."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_GPUS)


def is_panic(error: BaseException) -> bool:
    """Whether native code written in Rust (tokenizers, safetensors) panicked. PyO3 makes it a
    BaseException of a class that cannot be imported."""
    return type(error).__name__ == "PanicException"


def is_interrupt(error: BaseException) -> bool:
    """Whether it ends the program (Ctrl+C, an exit): no error of what was running."""
    return not isinstance(error, Exception) and not is_panic(error)


def panic_text(error: BaseException) -> str:
    """The first line of a panic, without the end of its sentence."""
    return _text_of(error).partition("\n")[0][:MAX_TEXT].rstrip(". ")


MAX_TEXT = 2_000
"""Longest text of an exception that is shown; a panic may quote its whole input."""


def _text_of(error: BaseException) -> str:
    try:
        return str(error).strip() or "no details"
    except Exception:  # one that cannot say itself is reported by its type
        return "no details"


def let_go(error: BaseException) -> None:
    """Drop the tracebacks of an error and its causes: their frames keep tensors alive, and the
    memory is needed for the next attempt."""
    found: BaseException | None = error
    seen = set()
    while found is not None and id(found) not in seen:  # an error may be its own cause
        seen.add(id(found))
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def in_one_line(error: BaseException) -> str:
    """The words of a library's error as part of a sentence, shortened."""
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, KeyError):
        words = f"unknown key {words}"
    elif isinstance(error, (TypeError, AttributeError)):  # words for programmers alone
        words = "a value is null or has the wrong type"
    return words if len(words) <= 300 else f"{words[:297]}..."


def refusal_of(error: BaseException) -> InferdeckError:
    """An error of work that was undone, for whoever asked for it: the engine serves on."""
    if isinstance(error, InferdeckError):
        return error
    kind = OutOfMemoryError if is_out_of_memory(error) else InferdeckError
    return kind(*describe(error)[:2])


def describe(error: BaseException) -> ErrorInfo:
    """Any exception as an `ErrorInfo`; the cause of one that is not ours begins with its type."""
    if isinstance(error, InferdeckError):
        return error.info()
    if is_out_of_memory(error):
        return ErrorInfo(
            "Out of memory.",
            "Choose a smaller model, context length or KV cache, or close other programs.",
            "MemoryError",
        )
    if is_gpu_fault(error):
        words = str(error).strip().partition("\n")[0].rstrip(".")
        return ErrorInfo(
            f"GPU error: {words}.",
            "Restart Inferdeck: the GPU is unusable in this process. If it fails again, check "
            "nvidia-smi, or set device to cpu.",
            type(error).__name__,
        )
    if isinstance(error, OSError) and error.errno is not None:
        where = "" if error.filename is None else f": {error.filename}"
        remedy = "Check this file, its permissions and the disk, then try again."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some space on this disk, then try again."
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "Raise the limit on open files (ulimit -n), or close other programs."
        return ErrorInfo(f"{os.strerror(error.errno)}{where}.", remedy, type(error).__name__)
    if is_panic(error):
        return ErrorInfo(
            f"Native code panicked: {panic_text(error)}.",
            "Check tokenizer.json and the weights, or choose another model.",
            type(error).__name__,
        )
    return ErrorInfo(
        f"{type(error).__name__}: {_text_of(error)[:MAX_TEXT]}",
        "This is a bug. Restart the engine, and report the bug with the log.",
        type(error).__name__,
    )
