"""Values of options: each reader returns the value of a text, or raises ArgumentTypeError with what
is allowed. argparse puts the option's name before it."""

from __future__ import annotations

import argparse
import ipaddress
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.units import parse_bytes, parse_integer, parse_number
from engine.errors import InferdeckError
from engine.sampling_params import MAX_BIAS

Reader = Callable[[str], Any]

MAX_INTEGER = 2**31 - 1
MAX_BYTES = 2**63 - 1
MAX_SECONDS = 86_400
_SHOWN = 60
_LONGEST = 300
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
                   r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?")  # fmt: skip


def refused(text: str, remedy: str) -> argparse.ArgumentTypeError:
    """The error for `text`, of which a long one is cut."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return argparse.ArgumentTypeError(f"{shown!r} is not valid. {remedy}")


def checked(read: Reader) -> Reader:
    """`read`, whose errors become ArgumentTypeError."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except InferdeckError as error:
            cause = error.cause if len(error.cause) <= _LONGEST else error.cause[:_LONGEST] + "…"
            raise argparse.ArgumentTypeError(f"{cause} {error.remedy}".strip()) from None

    return reader


def integer(minimum: int, maximum: int = MAX_INTEGER, unit: str = "") -> Reader:
    return _within(parse_integer, minimum, maximum, unit)


def number(minimum: float, maximum: float, unit: str = "") -> Reader:
    return _within(parse_number, minimum, maximum, unit)


def _within(parse: Reader, minimum: float, maximum: float, unit: str) -> Reader:
    def read(text: str) -> Any:
        try:
            value = parse(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:  # NaN neither
            bounds = f"{number_text(minimum)} to {number_text(maximum)} {unit}"
            raise refused(text, f"Use {bounds.rstrip()}.")
        return value

    return read


def number_text(value: float) -> str:
    """ "1,000,000", "0.001", "1e30"."""
    if value == int(value) and abs(value) < 1e19:
        return f"{int(value):,}"
    return f"{value:g}".replace("e+", "e")


count = integer(0)
positive = integer(1)
seed = integer(0, 2**63 - 1)
port = integer(0, 65_535)
seconds = number(0, MAX_SECONDS, "seconds")


def text(given: str) -> str:
    """Text that can be encoded. (Bytes of the command line that are not UTF-8 are surrogates.)"""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise refused(given, "Use UTF-8 text.") from None
    if "\0" in given:
        raise refused(given, "Use text without NUL characters.")
    return given


def name(given: str) -> str:
    """Text of one line that is not blank."""
    if not given.strip():
        raise refused(given, "Use a non-empty value.")
    if not given.isprintable():
        raise refused(given, "Use printable characters only.")
    return given


def one_of(*names: str) -> Reader:
    def read(given: str) -> str:
        if given not in names:
            raise refused(given, f"Choose one of {', '.join(names)}.")
        return given

    return read


def path(given: str) -> Path:
    return Path(folder(given))


def folder(given: str) -> str:
    """A path as text; `path` drops what is before an absolute part."""
    if not given.strip():
        raise refused(given, "Use a non-empty path.")
    return text(given)


def size(given: str) -> int:
    """At least 1 byte."""
    try:
        found = parse_bytes(given)
    except ValueError:
        found = 0
    if not 1 <= found <= MAX_BYTES:
        raise refused(given, "Use a size such as 2GiB, 512MiB or 4096.")
    return found


def host(given: str) -> str:
    """An IP address or a host name."""
    try:
        ipaddress.ip_address(given.strip("[]").partition("%")[0])
        return given
    except ValueError:
        if not _HOST.fullmatch(given):
            raise refused(given, "Use an IP address or a host name.") from None
        return given


def url(given: str) -> str:
    from app.clients.target import parse_address

    parse_address(name(given))
    return given


def token_ids(given: str) -> tuple[int, ...]:
    """Token ids of "1,2,3" (blanks allowed)."""
    found = given.replace(",", " ").split()
    if not found:
        raise refused(given, "Use token ids such as 1,2,3.")
    return tuple(map(token_id, found))


token_id = integer(0)


def bias(given: str) -> tuple[int, float]:
    """ID=BIAS."""
    token, equals, value = given.partition("=")
    if not equals:
        raise refused(given, "Use ID=BIAS, such as 5=-100.")
    return token_id(token), number(-MAX_BIAS, MAX_BIAS)(value)
