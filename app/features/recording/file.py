"""The file format of recordings. No Qt.

    INFERDECK-FLIGHT 1\\n        magic and format version
    {"created": ...}\\n          JSON: date, machine, versions
    segment ...                 size and checksum (8 bytes, little-endian),
    segment ...                 then lines of frames, compressed (zlib)

Segments are independent. A truncated file is read up to its last whole line.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.wire.recording import Frame, decode, encode
from engine.errors import CheckpointError, InferdeckError
from engine.json_file import read_regular

SUFFIX = ".inferdeck-flight"
VERSION = 1
_MAGIC = b"INFERDECK-FLIGHT "
_HEAD = struct.Struct("<II")
_LONGEST_LINE = 2**20
LARGEST_FILE, LARGEST_UNPACKED, _LARGEST_SEGMENT = 2**28, 2**30, 2**27
"""Bytes of a file, of all its unpacked lines, and of those of a segment: a damaged file must not
fill the memory. The recorder stops far below."""


class RecordingError(InferdeckError):
    """The file is not a readable recording."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that was read. `about`: its JSON header; `notice`: what is missing, or ""."""

    path: Path
    about: dict[str, Any]
    frames: tuple[Frame, ...]
    notice: str = ""


def pack(frames: Iterable[Frame]) -> bytes:
    """A segment."""
    packed = zlib.compress(encode(frames), 6)
    return _HEAD.pack(len(packed), zlib.crc32(packed)) + packed


def write(path: Path, about: dict[str, Any], segments: Iterable[bytes]) -> int:
    """Write a recording to `path`; its size. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(_MAGIC + str(VERSION).encode() + b"\n")
            file.write(json.dumps(about).encode() + b"\n")
            for segment in segments:
                file.write(segment)
            size = file.tell()
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return size


def read_about(path: Path) -> dict[str, Any]:
    """The JSON header alone. Raises OSError, or RecordingError with the cause and the remedy."""
    if not path.is_file():
        raise RecordingError(f"{path.name} is not a file.", f"Choose a *{SUFFIX} file.")
    with path.open("rb") as data:
        return _head(path, data.read(2 * _LONGEST_LINE))[0]


def read(path: Path) -> Recording:
    """Raises RecordingError with the cause and the remedy."""
    try:
        data = read_regular(path, LARGEST_FILE)
    except CheckpointError as error:
        raise RecordingError(error.cause, f"Choose a *{SUFFIX} file.") from error
    about, rest = _head(path, data)
    frames: list[Frame] = []
    notice = ""
    try:
        for frame in _frames(rest):
            frames.append(frame)  # noqa: PERF402 - what was read before an error is kept
    except (ValueError, zlib.error) as error:
        if isinstance(error, zlib.error):
            error = ValueError("a segment cannot be decompressed")
        notice = f"The recording is damaged or truncated ({error}). Showing the readable part."
    if not frames:
        raise RecordingError(f"{path.name} contains no readable data.", "Save the recording again.")
    return Recording(path, about, tuple(frames), notice)


def _head(path: Path, data: bytes) -> tuple[dict[str, Any], memoryview]:
    first, _, rest = data[:_LONGEST_LINE].partition(b"\n")
    if not first.startswith(_MAGIC) or not first[len(_MAGIC) :].isdigit():
        raise RecordingError(
            f"{path.name} is not an Inferdeck recording.", f"Choose a *{SUFFIX} file."
        )
    version = int(first[len(_MAGIC) :][:9])
    if version > VERSION:
        raise RecordingError(
            f"{path.name} uses format {version}; this version supports formats up to {VERSION}.",
            "Open it with the Inferdeck version that saved it, or a newer one.",
        )
    line, end, _ = rest.partition(b"\n")
    try:
        about = json.loads(line)
        if not end or not isinstance(about, dict):
            raise ValueError
    except (ValueError, RecursionError) as error:
        raise RecordingError(
            f"{path.name} has a damaged header.", "Save the recording again."
        ) from error
    return about, memoryview(data)[len(first) + len(line) + 2 :]


def _frames(data: memoryview) -> Iterator[Frame]:
    """Raises ValueError or zlib.error if the data is truncated or damaged."""
    place = unpacked = 0
    while place < len(data):
        if len(data) - place < _HEAD.size:
            raise ValueError("truncated last segment")
        size, checksum = _HEAD.unpack_from(data, place)
        packed = data[place + _HEAD.size : place + _HEAD.size + size]
        is_whole = len(packed) == size
        if is_whole and zlib.crc32(packed) != checksum:
            raise ValueError(f"wrong checksum at byte {place:,}")
        unpacker = zlib.decompressobj()
        lines = unpacker.decompress(packed, _LARGEST_SEGMENT)
        unpacked += len(lines)
        if unpacker.unconsumed_tail or unpacked > LARGEST_UNPACKED:
            raise ValueError(f"oversized segment at byte {place:,}")
        yield from decode(lines)
        if not is_whole:
            raise ValueError("truncated last segment")
        place += _HEAD.size + size
