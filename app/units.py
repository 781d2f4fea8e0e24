"""Numbers, sizes and values of settings as they are typed. Their text is `engine.units`. Imports no
Qt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from engine.config import TYPE_NAMES, Setting
from engine.errors import ConfigError

_FACTORS = {
    "": 1, "b": 1,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,30})\s*")
_LONGEST = 20  # digits
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """Bytes of "2GiB", "512MiB", "1.5 GB" or "4096". K, M and G alone are powers of 1,024.

    Raises ValueError with the given text and the accepted forms.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text[:60]!r} is not a size; write it like 2GiB, 512MiB or 4096")
    if len(match[1]) > _LONGEST:
        raise ValueError(f"{match[1][:_LONGEST]}… is too large")
    return int(float(match[1]) * factor)


def parse_integer(text: str) -> int:
    """Of ASCII digits. Raises ValueError."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError
    return int(match[1])


def parse_number(text: str) -> float:
    """As `parse_integer`; may be infinite or NaN."""
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)


def setting_value(setting: Setting, text: str) -> Any:
    """`text` as a value of `setting`. Raises ConfigError naming the allowed values."""
    value = _parse(setting, text)
    setting.check(value)
    return value


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    int: parse_integer, float: parse_number, str: str
}  # fmt: skip


def _parse(setting: Setting, text: str) -> Any:
    if setting.optional and text.lower() in ("none", "auto"):
        return None
    if setting.type is bool:
        if text.lower() not in ("true", "false", "on", "off", "1", "0"):
            raise ConfigError(f"{setting.name} is {text!r}.", "Use true or false.")
        return text.lower() in ("true", "on", "1")
    read, wanted = _PARSERS[setting.type], TYPE_NAMES[setting.type]
    if setting.unit == "bytes":
        read, wanted = parse_bytes, "a size such as 2GiB, 512MiB or 4096"
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{setting.name} is {text[:60]!r}.", f"Use {wanted}.") from None
