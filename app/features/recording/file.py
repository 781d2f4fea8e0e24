"""The file of a recording. No Qt.

    INFERDECK-FLIGHT 1\\n        what it is, and the version of the format
    {"created": ...}\\n          one line of JSON: when, machine, versions
    segment ...                 size and checksum of what follows (8 bytes, little end first),
    segment ...                 then lines of frames, compressed (zlib)

Each segment can be read alone. A file that ends in the middle of one is read to its last whole
line.
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
from engine.errors import InferdeckError

SUFFIX = ".inferdeck-flight"
VERSION = 1
_MAGIC = b"INFERDECK-FLIGHT "
_HEAD = struct.Struct("<II")
_LONGEST_LINE = 2**20
_LARGEST_SEGMENT = 2**28
"""Bytes of a segment when it is unpacked: ours are far smaller, a damaged file must not fill the
memory."""


class RecordingError(InferdeckError):
    """A file that cannot be read as a recording, with the reason."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that was read. `notice` says what is missing of it, "" where nothing is. `about` is
    its line of JSON."""

    path: Path
    about: dict[str, Any]
    frames: tuple[Frame, ...]
    notice: str = ""


def pack(frames: Iterable[Frame]) -> bytes:
    """A segment."""
    packed = zlib.compress(encode(frames), 6)
    return _HEAD.pack(len(packed), zlib.crc32(packed)) + packed


def write(path: Path, about: dict[str, Any], segments: Iterable[bytes]) -> int:
    """Write a recording in place of what is at `path`; its size. Raises OSError."""
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


def read(path: Path) -> Recording:
    """Raises RecordingError with the cause and the remedy."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path.name} cannot be read: {error.strerror}.") from error
    about, rest = _head(path, data)
    frames: list[Frame] = []
    notice = ""
    try:
        for frame in _frames(rest):
            frames.append(frame)  # noqa: PERF402 - what was read before an error is kept
    except (ValueError, zlib.error) as error:
        notice = f"The recording is damaged or cut short ({error}): it is shown as far as it goes."
    if not frames:
        raise RecordingError(
            f"{path.name} has no frame that can be read.", "Save the recording again."
        )
    return Recording(path, about, tuple(frames), notice)


def _head(path: Path, data: bytes) -> tuple[dict[str, Any], memoryview]:
    first, _, rest = data[:_LONGEST_LINE].partition(b"\n")
    if not first.startswith(_MAGIC) or not first[len(_MAGIC) :].isdigit():
        raise RecordingError(
            f"{path.name} is not a recording of Inferdeck.", f"Choose a file *{SUFFIX}."
        )
    version = int(first[len(_MAGIC) :])
    if version > VERSION:
        raise RecordingError(
            f"{path.name} has format {version}, and this program reads up to format {VERSION}.",
            "Open it with the version of Inferdeck that made it, or a newer one.",
        )
    line, end, _ = rest.partition(b"\n")
    try:
        about = json.loads(line)
        if not end or not isinstance(about, dict):
            raise ValueError
    except ValueError as error:
        raise RecordingError(
            f"{path.name} ends in its first lines, or they are damaged.", "Save it again."
        ) from error
    return about, memoryview(data)[len(first) + len(line) + 2 :]


def _frames(data: memoryview) -> Iterator[Frame]:
    """Raises ValueError or zlib.error where the data ends early or is damaged."""
    place = 0
    while place < len(data):
        if len(data) - place < _HEAD.size:
            raise ValueError("its last segment is cut off")
        size, checksum = _HEAD.unpack_from(data, place)
        packed = data[place + _HEAD.size : place + _HEAD.size + size]
        is_whole = len(packed) == size
        if is_whole and zlib.crc32(packed) != checksum:
            raise ValueError(f"wrong checksum at byte {place:,}")
        unpacker = zlib.decompressobj()
        lines = unpacker.decompress(packed, _LARGEST_SEGMENT)
        if unpacker.unconsumed_tail:
            raise ValueError(f"the segment at byte {place:,} is too large")
        yield from decode(lines)
        if not is_whole:
            raise ValueError("its last segment is cut off")
        place += _HEAD.size + size
