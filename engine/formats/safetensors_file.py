"""Reads the header of a safetensors file: name, dtype, shape and offset of each tensor.

    | 8 bytes: n, little endian | n bytes of JSON | data ...                               |
    |                           | {"name": {"dtype", "shape", "data_offsets": [from, to]}} |

Offsets in the JSON count from the start of the data. Format: huggingface/safetensors, README.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import CheckpointError

ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
_MAX_HEADER = 100_000_000  # the format's own limit
_COPY_AGAIN = "Download or copy the file again."


class TensorInfo(NamedTuple):
    """One tensor on disk. `offset` counts from the start of the file; `dtype` is safetensors'
    name (BF16, F32, ...)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def rows(self, start: int, end: int) -> TensorInfo:
        """Rows `start` to `end`, which are contiguous on disk."""
        row_bytes = self.nbytes // self.shape[0]
        shape = (end - start, *self.shape[1:])
        return self._replace(
            shape=shape, nbytes=shape[0] * row_bytes, offset=self.offset + start * row_bytes
        )


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Tensor name -> TensorInfo of one file, whose size is checked against its header.

    Raises CheckpointError naming the file with expected and found bytes, if it is truncated, too
    long or not a safetensors file at all.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            if start.startswith(b"version "):
                raise CheckpointError(
                    f"{file} is a Git LFS pointer ({size} bytes), not the weights.",
                    "Run `git lfs pull` in the folder, or download the model again.",
                )
            if len(start) < 8:
                raise CheckpointError(
                    f"{file} is truncated: {size} bytes, too short for a header.", _COPY_AGAIN
                )
            (length,) = struct.unpack("<Q", start)
            if length > _MAX_HEADER:
                raise CheckpointError(
                    f"{file} is not a safetensors file: invalid header length {length}.",
                    _COPY_AGAIN,
                )
            header = stream.read(length)
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.strerror or error}.", "Check the file's permissions."
        ) from error
    if len(header) < length:
        raise CheckpointError(
            f"{file} is truncated: header {8 + length} bytes, file {size} bytes.",
            _COPY_AGAIN,
        )
    return _parse(file, header, size)


def _parse(file: Path, header: bytes, size: int) -> dict[str, TensorInfo]:
    try:
        entries: dict[str, Any] = json.loads(header)
        tensors = {
            name: _tensor(file, entry, 8 + len(header))
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is corrupt: invalid header ({error}).", _COPY_AGAIN
        ) from error
    expected = max((t.offset + t.nbytes for t in tensors.values()), default=8 + len(header))
    if size != expected:
        word = "truncated" if size < expected else "corrupt"
        raise CheckpointError(
            f"{file} is {word}: expected {expected} bytes, found {size}.", _COPY_AGAIN
        )
    return tensors


def _tensor(file: Path, entry: dict[str, Any], data_start: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    shape = tuple(int(n) for n in entry["shape"])
    dtype = entry["dtype"]
    item_size = ITEM_SIZES.get(dtype)
    if item_size is None:
        raise ValueError(f"unknown number format {dtype}")
    if min(shape, default=0) < 0 or begin < 0 or end - begin != math.prod(shape) * item_size:
        raise ValueError(f"{end - begin} bytes for shape {list(shape)} in {dtype}")
    return TensorInfo(file, dtype, shape, end - begin, data_start + begin)
