"""Reads the header of a safetensors file: name, dtype, shape and offset of each tensor.

    | 8 bytes: n, little endian | n bytes of JSON | data ...                               |
    |                           | {"name": {"dtype", "shape", "data_offsets": [from, to]}} |

Offsets in the JSON count from the start of the data, which the tensors fill without a gap or an
overlap. Format: huggingface/safetensors, README. What the library refuses is refused here, and so
is what its parser alone accepts: duplicate or unknown keys, blanks before the header.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from engine.errors import CheckpointError
from engine.json_file import AGAIN, decode_json, open_regular, reason_of, shown, unreadable

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of a value, by safetensors' name of its dtype."""
_MAX_HEADER = 32 * 2**20
"""The format allows 100 MB. This is a quarter of a million tensors, more than any file has."""
_MAX_NAME = 500
_MAX_AXES = 16
_MAX_COUNT = 2**64 - 1  # the library counts in 64 bits

_Size = Annotated[int, Meta(ge=0)]


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


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Tensor name -> TensorInfo of one file, checked against each other and the file's size.

    Raises CheckpointError naming the file, the tensor and what was expected and found, if it is
    truncated, too long, inconsistent or not a safetensors file at all.
    """
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            start = stream.read(8)
            if start.startswith(b"version "):
                raise CheckpointError(
                    f"{file} is a Git LFS pointer ({size} bytes), not the weights.",
                    "Run `git lfs pull` in the folder, or download the model again.",
                )
            if len(start) < 8:
                raise CheckpointError(
                    f"{file} is truncated: {size} bytes, too short for a header.", AGAIN
                )
            (length,) = struct.unpack("<Q", start)
            if length > _MAX_HEADER:
                raise CheckpointError(
                    f"{file} is not a safetensors file: header of {length} bytes; the limit is "
                    f"{_MAX_HEADER:,} bytes.",
                    AGAIN,
                )
            header = stream.read(length)
        except OSError as error:
            raise unreadable(file, error) from error
    if len(header) < length:
        raise CheckpointError(
            f"{file} is truncated: header {8 + length} bytes, file {size} bytes.", AGAIN
        )
    return _parse(file, header, size)


def _parse(file: Path, header: bytes, size: int) -> dict[str, TensorInfo]:
    if not header.startswith(b"{"):
        raise _corrupt(file, f"its header starts with {header[:1]!r}; expected '{{'")
    entries = decode_json(header, dict[str, msgspec.Raw], file)
    try:
        json.loads(header.decode(), object_pairs_hook=_unique, parse_int=_natural)
    except RecursionError:
        raise _corrupt(file, "its header has too many nested levels") from None
    except ValueError as error:
        raise _corrupt(file, reason_of(error)) from None
    metadata = entries.pop("__metadata__", None)
    if metadata is not None:
        decode_json(bytes(metadata), dict[str, str] | None, f"__metadata__ of {file}")  # type: ignore[arg-type]
    start = 8 + len(header)
    tensors = {name: _tensor(file, name, entry, start) for name, entry in entries.items()}
    end = _end(file, tensors, start)
    if size != end:
        word = "truncated" if size < end else "corrupt"
        raise CheckpointError(f"{file} is {word}: expected {end} bytes, found {size}.", AGAIN)
    return tensors


def _tensor(file: Path, name: str, raw: msgspec.Raw, data_start: int) -> TensorInfo:
    if len(name) > _MAX_NAME:
        raise _corrupt(
            file, f"the name {shown(name)} has {len(name):,} characters; the limit is {_MAX_NAME}"
        )
    entry = decode_json(bytes(raw), _Entry, f"{name} in {file}")
    if len(entry.shape) > _MAX_AXES:
        raise _corrupt(
            file, f"{name} has {len(entry.shape):,} dimensions; the limit is {_MAX_AXES}"
        )
    bits = BITS.get(entry.dtype)
    if bits is None:
        raise _corrupt(file, f"{name} has unknown dtype {shown(entry.dtype)}")
    count, begin, end = 1, *entry.data_offsets
    for length in (*entry.shape, bits):
        count *= length
        if count > _MAX_COUNT:
            raise _corrupt(file, f"{name} has shape {shown(entry.shape)}, more than 2^64 bits")
    if begin > end or (end - begin) * 8 != count:
        raise _corrupt(
            file,
            f"{name} has data_offsets {[begin, end]}; shape {shown(entry.shape)} in {entry.dtype} "
            f"needs {-(-count // 8)} bytes",
        )
    return TensorInfo(file, entry.dtype, tuple(entry.shape), end - begin, data_start + begin)


def _end(file: Path, tensors: dict[str, TensorInfo], position: int) -> int:
    """The end of the last tensor; each starts where the one before it ends."""
    most = sum(info.nbytes for info in tensors.values())
    for name, info in tensors.items():
        if info.offset - position > most:  # the others would only seem to leave the gap
            offsets = [info.offset - position, info.offset - position + info.nbytes]
            raise _corrupt(
                file, f"{name} has data_offsets {offsets}; all tensors need {most} bytes"
            )
    before = "the header"
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != position:
            word = "overlaps" if info.offset < position else "leaves a gap after"
            raise _corrupt(
                file, f"{name} {word} {before}: it starts at {info.offset}, expected {position}"
            )
        before, position = name, info.offset + info.nbytes
    return position


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """A hook for objects: nothing of them is kept."""
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"duplicate key {shown(name)}")
        seen.add(name)


def _natural(digits: str) -> int:
    if digits == "-0":  # 0 for msgspec, which refuses other negative numbers where they stand
        raise ValueError(f"{digits} is negative")
    return 0


def _corrupt(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is corrupt: {why}.", AGAIN)
