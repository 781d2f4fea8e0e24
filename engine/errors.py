"""Errors that a user reads: the cause, the numbers behind it, and what to do about it."""

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
    """Base of every error that is shown to the user.

    `cause` says what went wrong with its numbers, `remedy` what the user can do.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(f"{cause} {remedy}".strip())
        self.cause = cause
        self.remedy = remedy

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.cause, self.remedy, type(self).__name__)


class ConfigError(InferdeckError):
    """A setting, or a combination of settings, that cannot be honoured."""


class DraftModelError(ConfigError):
    """A draft model that cannot draft for the model: another vocabulary, too large, not named. The
    model itself can be loaded without it."""


class InvalidRequestError(InferdeckError):
    """A request that is refused when it is added: bad parameters, too long, can never fit."""


class CheckpointError(InferdeckError):
    """A model folder that is missing something, damaged, or not what it says."""


class UnsupportedModelError(InferdeckError):
    """A model whose architecture this engine cannot run, with the reason."""


class OutOfMemoryError(InferdeckError):
    """Not enough memory for what was asked, with needed and available bytes."""


class DiskFullError(InferdeckError):
    """Not enough space for a file, with needed and free bytes."""


class NumericalError(InferdeckError):
    """The model produced NaN or infinite logits."""


class LoadCancelled(InferdeckError):  # noqa: N818 - not an error to the user, a way out
    """The user cancelled loading; nothing of the half-loaded model is kept."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or elsewhere. (torch raises RuntimeError
    on the CPU, and its own kind of it on GPUs; libraries beneath it say it in words.)"""
    if isinstance(error, (MemoryError, OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower()
        for words in ("out of memory", "can't allocate memory", "alloc_failed")
    )


_OF_GPUS = ("CUDA error: ", "Triton Error [CUDA]: ", "CUBLAS_STATUS_", "CUDNN_STATUS_")


def is_gpu_fault(error: BaseException) -> bool:
    """Whether a GPU, its driver or a kernel failed: after most such errors the GPU computes nothing
    more in this process."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_GPUS)


def let_go(error: BaseException) -> None:
    """Forget the frames that an error came through: what was being made in them hangs on it, and
    may be as large as what is to be made in its place."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def describe(error: BaseException) -> ErrorInfo:
    """Any exception as an `ErrorInfo`; one that is not ours keeps its type's name in the cause."""
    if isinstance(error, InferdeckError):
        return error.info()
    if is_out_of_memory(error):
        return ErrorInfo(
            "The machine ran out of memory.",
            "Choose a smaller model, context length or cache, or close other programs.",
            "MemoryError",
        )
    if is_gpu_fault(error):
        words = str(error).strip().partition("\n")[0].rstrip(".")
        return ErrorInfo(
            f"The GPU failed: {words}.",
            "Close the program and start it again: in this process the GPU may not compute any "
            "more. If it fails again, see whether nvidia-smi still shows it; the device cpu works "
            "without it.",
            type(error).__name__,
        )
    text = str(error).strip() or "no further details"
    return ErrorInfo(
        f"{type(error).__name__}: {text}",
        "This is a fault in the program: restart the engine, and report it with the log.",
        type(error).__name__,
    )
