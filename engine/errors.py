"""Errors for users: the cause with its numbers, and the remedy."""

from __future__ import annotations

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


def let_go(error: BaseException) -> None:
    """Drop the tracebacks of an error and its causes: their frames keep tensors alive, and the
    memory is needed for the next attempt."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


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
    text = str(error).strip() or "no details"
    return ErrorInfo(
        f"{type(error).__name__}: {text}",
        "This is a bug. Restart the engine, and report the bug with the log.",
        type(error).__name__,
    )
