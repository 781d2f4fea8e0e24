"""Reads tensors of a checkpoint in chunks into allocated memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType

import torch

from engine.errors import CheckpointError, LoadCancelled
from engine.formats.safetensors_file import TensorInfo

TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip
_CHUNK = 16 * 1024 * 1024


def torch_dtype(info: TensorInfo) -> torch.dtype:
    """The torch dtype of a tensor. Raises CheckpointError for one that weights cannot have."""
    dtype = TORCH_DTYPES.get(info.dtype)
    if dtype is None:
        raise CheckpointError(
            f"{info.file} has a tensor with shape {list(info.shape)} and dtype {info.dtype}; "
            f"supported: {', '.join(TORCH_DTYPES)}.",
            "Choose a checkpoint in another dtype.",
        )
    return dtype


class TensorReader:
    """Streams tensors from files through one reusable buffer of `_CHUNK` bytes.

    Plain reads instead of a memory map: a file that shrinks or a failing disk is then an error that
    can be caught, and the pages do not count as this process's memory.
    """

    def __init__(
        self,
        total_bytes: int,
        progress: Callable[[str, int, int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._total = total_bytes
        self._done = 0
        self._progress = progress
        self._cancelled = cancelled
        self._files: dict[Path, FileIO] = {}
        self._stack = ExitStack()
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._files.clear()

    def copy_into(self, info: TensorInfo, destination: torch.Tensor) -> None:
        """Read one tensor into `destination` (same shape; its dtype and device are converted
        to). Raises LoadCancelled between chunks, CheckpointError if the file cannot be read."""
        rows = info.shape[0] if len(info.shape) > 1 else 1
        per_chunk = max(1, _CHUNK // max(1, info.nbytes // max(1, rows)))
        source_shape = info.shape if rows > 1 else (1, *info.shape)
        target = destination if rows > 1 else destination.reshape(source_shape)
        for start in range(0, rows, per_chunk):
            count = min(per_chunk, rows - start)
            chunk = self._read(info, start * info.nbytes // rows, count * info.nbytes // rows)
            target[start : start + count].copy_(chunk.view(count, *source_shape[1:]))

    def read(self, info: TensorInfo) -> torch.Tensor:
        """One tensor as it is on disk, in memory of its own on the CPU."""
        tensor = torch.empty(info.shape, dtype=torch_dtype(info))
        self.copy_into(info, tensor)
        return tensor

    def equal(self, a: TensorInfo, b: TensorInfo) -> bool:
        """Whether two tensors hold the same bytes; counts as no progress."""
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        half = _CHUNK // 2
        for start in range(0, a.nbytes, half):
            count = min(half, a.nbytes - start)
            first = self._read_bytes(a, start, count, at=0)
            if not torch.equal(first, self._read_bytes(b, start, count, at=half)):
                return False
        return True

    def _read(self, info: TensorInfo, start: int, count: int) -> torch.Tensor:
        raw = self._read_bytes(info, start, count, at=0)
        self._done += count
        self._progress("Reading weights", self._done, self._total)
        return raw.view(torch_dtype(info))

    def _read_bytes(self, info: TensorInfo, start: int, count: int, *, at: int) -> torch.Tensor:
        if self._cancelled():
            raise LoadCancelled("Loading was cancelled.")
        if self._buffer.numel() < at + count:
            self._buffer = torch.empty(max(_CHUNK, at + count), dtype=torch.uint8)
        chunk = self._buffer[at : at + count]
        try:
            file = self._open(info.file)
            file.seek(info.offset + start)
            # readinto may give less than asked for; the loop ends at the end of the file
            view, got = memoryview(chunk.numpy()), 0  # type: ignore[arg-type]
            while got < count and (n := file.readinto(view[got:])):
                got += n
        except OSError as error:
            raise CheckpointError(
                f"{info.file} cannot be read: {error.strerror or error}.",
                "Check the disk, or download the file again.",
            ) from error
        if got < count:
            raise CheckpointError(
                f"{info.file} was truncated while being read: expected {count} bytes at offset "
                f"{info.offset + start}, got {got}.",
                "Wait for the download to finish, then load again.",
            )
        return chunk

    def _open(self, path: Path) -> FileIO:
        if path not in self._files:
            self._files[path] = self._stack.enter_context(path.open("rb", buffering=0))
        return self._files[path]
