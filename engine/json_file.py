"""Reads files that other programs wrote, JSON above all: regular files only, of bounded size and
depth, checked against a type.

    read_regular   bytes        a FIFO, a device or a folder of that name is refused unopened
    read_start     bytes        of any file that the user names, up to a limit
    read_json      a value      objects as dict, or any type that msgspec knows
    decode_json    the same, out of bytes that are in memory
    checked        a value      as one of a type
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import CheckpointError

MAX_BYTES = 16 * 2**20
"""Of a configuration; the largest in use are 1 MB."""
MAX_DEPTH = 64
_PIECE = 2**20
AGAIN = "Download or copy the file again."

T = TypeVar("T")
Source = Path | str

# A file may become a FIFO after it was looked at; a regular one ignores O_NONBLOCK, which Windows
# does not have. O_BINARY is of Windows alone: without it line ends are converted.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_KINDS = (
    (stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"), (stat.S_ISSOCK, "socket"),
)  # fmt: skip
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_EXPECTED = re.compile(r"Expected `(?P<wanted>.+?)`(?P<bound>[^,`]*)(, got `(?P<got>.*)`)?$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_NAMES = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "true or false",
    "object": "an object", "array": "a list", "dict": "an object", "list": "a list",
    "NoneType": "null",
}  # fmt: skip


def open_regular(file: Path) -> FileIO:
    """`file` for reading, without a buffer. Raises CheckpointError for anything but a regular file:
    to open a FIFO blocks until something writes to it."""
    try:
        mode = os.stat(file).st_mode  # before it is opened: opening a device can have effects
        if stat.S_ISREG(mode):
            found = FileIO(os.open(file, _FLAGS))
            mode = os.fstat(found.fileno()).st_mode
            if stat.S_ISREG(mode):
                return found
            found.close()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise unreadable(file, error) from error
    kind = next((name for test, name in _KINDS if test(mode)), "special file")
    raise CheckpointError(
        f"{file} is a {kind}; expected a regular file.", "Replace it with the original file."
    )


def read_regular(file: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a regular file. Raises CheckpointError, also for more than `limit` bytes."""
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            content = stream.read(limit + 1) if size <= limit else b""
        except OSError as error:
            raise unreadable(file, error) from error
    size = max(size, len(content))  # a file in /proc says 0
    if size > limit:
        raise CheckpointError(f"{file} has {size:,} bytes; the limit is {limit:,}.", AGAIN)
    return content


def read_start(file: Path, limit: int) -> bytes:
    """The first bytes of any file, `limit` + 1 at most: a pipe or a device does not say how many it
    has. Raises OSError."""
    with file.open("rb") as stream:
        return stream.read(limit + 1)


def read_json(
    file: Path,
    kind: type[T] = dict,  # type: ignore[assignment]
    *,
    limit: int = MAX_BYTES,
    hook: Callable[[dict[str, Any]], Any] | None = None,
) -> T:
    """The content of a JSON file as a `kind`; `hook` replaces objects of untyped content.

    Raises CheckpointError with file, field, value and expected type.
    """
    return decode_json(read_regular(file, limit), kind, file, hook=hook)


def decode_json(
    data: bytes,
    kind: type[T],
    source: Source,
    *,
    hook: Callable[[dict[str, Any]], Any] | None = None,
) -> T:
    """`data` as a `kind`; see `read_json`. `source` is named in errors.

    A typed value is decoded without memory for what its type does not mention.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        if kind is not dict:
            _check_utf8(data)  # msgspec skips what the type does not mention unread
            typed = msgspec.json.decode(data, type=kind)
            if isinstance(typed, (dict, list)):
                _check_depth(typed, source)
            return typed
        value = json.loads(data.decode(), object_hook=hook)
        if not isinstance(value, dict):
            raise CheckpointError(f"{source} is not a JSON object.", AGAIN)
        _check_depth(value, source)
        if _SURROGATE.search(data):  # half a pair cannot be printed
            json.dumps(value, ensure_ascii=False).encode()
    except msgspec.ValidationError as error:
        raise _misfit(str(error), data, source) from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise unreadable(source, error) from None
    return value  # type: ignore[return-value]


def _check_utf8(data: bytes) -> None:
    """Raise UnicodeDecodeError. In pieces: the whole text would take up to 4 times the memory."""
    if data.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _PIECE):
        decoder.decode(data[start : start + _PIECE])
    decoder.decode(b"", final=True)


def checked(value: Any, kind: type[T], source: Source) -> T:
    """`value`, from JSON, as a `kind`. Raises CheckpointError like `read_json`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), value, source) from None
    except RecursionError:
        raise _too_deep(source) from None


def shown(value: Any) -> str:
    """A value of JSON for an error, shortened."""
    text = repr(value) if isinstance(value, float) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def type_text(name: str) -> str:
    """A type of msgspec's or Python's for an error: "an integer"."""
    return _NAMES.get(name, name)


def unreadable(source: Source, error: Exception) -> CheckpointError:
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        remedy = AGAIN if isinstance(error, FileNotFoundError) else "Check its permissions."
        return CheckpointError(f"{source} cannot be read: {reason}.", remedy)
    return CheckpointError(f"{source} cannot be read: {reason_of(error)}.", AGAIN)


def reason_of(error: Exception) -> str:
    """Why bytes are no JSON, without what only Python calls so."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte 0x{error.object[error.start]:02x} is not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "it has an unpaired surrogate"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno:,}, column {error.colno:,}"
    if "integer string conversion" in str(error):  # of CPython's own limit
        return f"it has an integer of more than {sys.get_int_max_str_digits()} digits"
    return str(error).rstrip(".")


def _check_depth(value: Any, source: Source) -> None:
    """Level by level: recursion is what too deep a file breaks."""
    level, depth = [value], 0
    while level := [
        inner
        for outer in level
        for inner in (outer.values() if isinstance(outer, dict) else outer)
        if isinstance(inner, (dict, list))
    ]:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep(source)


def _too_deep(source: Source) -> CheckpointError:
    return CheckpointError(f"{source} has more than {MAX_DEPTH} nested levels.", AGAIN)


def _misfit(words: str, content: Any, source: Source) -> CheckpointError:
    """msgspec's words, "Expected `int`, got `str` - at `$.a[0]`", with the value."""
    words, _, where = words.partition(" - at ")
    path = where.rpartition("$")[2].rstrip("`")
    field = path.removeprefix(".")
    expected = _EXPECTED.match(words)
    if expected is None:
        place = f"{source}: {field}" if field else str(source)
        return CheckpointError(f"{place}: {words.replace('`', '')}.", AGAIN)
    wanted = " or ".join(map(type_text, expected["wanted"].split(" | ")))
    wanted += expected["bound"]
    found = _at(path, content)
    if found is None:
        found = type_text(expected["got"] or "another value")
    has = f"has {field} =" if field else "contains"
    return CheckpointError(f"{source} {has} {found}; expected {wanted}.", AGAIN)


def _at(path: str, content: Any) -> str | None:
    """The value at a path of msgspec's; None where it says "one of them" only."""
    if "[...]" in path:
        return None
    try:
        value = json.loads(content) if isinstance(content, bytes) else content
        for name, index in _STEP.findall(path):
            value = value[int(index)] if index else value[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None  # what follows the misfit is damaged as well
    return shown(value)
