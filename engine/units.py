"""Measured values and names as text: one formatter for each quantity.

Durations are seconds, sizes bytes, rates per second. What is not measured (None, NaN, infinity) is
a dash. In a sentence a value takes the unit that fits it (`duration_text`); a column, an axis or a
card has one unit for all of its values (`duration_in`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache

NOTHING = "–"
MINUS = "−"
TIMES = "×"

# Lines --------------------------------------------------------------------------------------

_PER_SECOND = re.compile(r"(?<=\w)/s\b")
_GAP = re.compile(
    r"(?<=\d) (?=(?:[%×]|[mµ]?s|min|h|days|[kKMGT]?i?B(?:/s)?|tok/s|req/s|tokens|"
    r"[kMGT]?FLOP(?:/s)?)(?!\w))"
)


def unbroken(text: str) -> str:
    """`text` with a no-break space between a number and its unit, and no break in a rate's unit
    ("tok/s"): for lines that wrap."""
    return _PER_SECOND.sub("/\u2060s", _GAP.sub("\u00a0", text))


# Numbers ------------------------------------------------------------------------------------


def number(value: float | None, decimals: int = 0) -> str:
    """ "1,204.5": thousands separators, a real minus sign."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = f"{value:,.{decimals}f}"
    return text.replace("-", MINUS) if text.strip("-0.,") else text.lstrip("-")


def whole(value: float | None) -> str:
    return number(value)


def figure(value: float | None, digits: int = 2) -> str:
    """ "7.4", "31", "1,204": two significant digits for a glance, integers in full. With three:
    "7.41", "31.0", "1,204"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return number(value, _decimals(value, digits))


def short_figure(value: float | None, digits: int = 3) -> str:
    """`figure` of three digits, without trailing zeros: "7.41", "31"."""
    text = figure(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def counted(count: int, noun: str) -> str:
    """ "1 token", "1,204 tokens"."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def scaled_count(count: float) -> str:
    """ "1.24 B", "12.3 M", "4.50 K", "17": of parameters."""
    for name, factor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(count) >= 0.9995 * factor:
            return f"{figure(count / factor, 3)} {name}"
    return number(count)


def percent_text(share: float | None, digits: int = 2) -> str:
    """ "62 %", "0.4 %" of the fractions 0.62 and 0.004."""
    return NOTHING if share is None else _with_unit(short_figure(100 * share, digits), "%")


def whole_percent(share: float | None) -> str:
    """ "3 %" of 0.031: for a share that is shown in several places."""
    return _with_unit(number(None if share is None else 100 * share), "%")


def change_text(share: float | None, digits: int = 2) -> str:
    """ "+12 %", "−33 %", "0 %" of the fractions 0.12, -0.33 and 0: a relative change."""
    text = percent_text(share, digits)
    if share is None or not math.isfinite(share):
        return text
    return text if text[0] == MINUS or text == "0 %" else f"+{text}"


def points_text(points: float, decimals: int = 2) -> str:
    """ "+5.12 pt", "−41 pt": the difference of two percentages in percentage points."""
    text = _with_unit(number(points, decimals), "pt")
    return text if text[0] == MINUS else f"+{text}"


def factor_text(factor: float | None) -> str:
    """ "1.42×", "0.98×", "50×"."""
    return _with_unit(number(factor, 2 if (factor or 0) < 9.995 else 0), TIMES, gap="")


# Latencies ---------------------------------------------------------------------------------

LONG_MS = 1_000
"""Latencies from here on are in seconds; others beside them too, from a tenth of this on."""


def latency_texts(values: Sequence[float | None]) -> tuple[list[str], str]:
    """Latencies in ms that are shown together, and their unit: (["84", "151"], "ms"),
    (["0.440", "1.93"], "s"), (["3.0 ms", "1.93"], "s")."""
    if max((ms or 0.0 for ms in values), default=0.0) < LONG_MS:
        return [figure(ms) for ms in values], "ms"
    return [_in_seconds(ms) for ms in values], "s"


def _in_seconds(ms: float | None) -> str:
    """ "1.93" of 1,930; "3.0 ms" of 3, which has no digits in seconds."""
    if ms is not None and ms < LONG_MS / 10:
        return f"{figure(ms)} ms"
    return figure(None if ms is None else ms / 1e3, 3)


def from_to(before: float | None, after: float | None, unit: str) -> str:
    """ "84 → 151 ms", "0.440 → 1.93 s", "2.90 s → 54 ms", "82 → 55 tok/s"."""
    if unit == "ms":
        (old, new), unit = latency_texts((before, after))
        if " " in new:  # it has a unit of its own
            return f"{old} {unit} → {new}"
    else:
        old, new = figure(before), figure(after)
    return f"{old} → {new} {unit}"


# Durations and times ------------------------------------------------------------------------

_UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}


def duration_text(seconds: float | None, digits: int = 3) -> str:
    """ "850 µs", "7.4 ms", "63 ms", "14.6 s", "81 s", "2 min 5 s", "2 h 5 min", "3 days".

    At most `digits` significant digits, and whole seconds from one minute on. Two digits are for
    estimates: "about 12 s", "3 min".
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    size = abs(seconds)
    if size >= 119.5:
        return (MINUS if seconds < 0 else "") + _long_duration(round(size), digits)
    if size >= 59.95:
        return f"{number(seconds)} s"
    unit = "s" if size >= 0.9995 else "ms" if size >= 0.9995e-3 else "µs"
    value = seconds / _UNITS[unit]
    if unit == "µs" and size < 0.995e-6:
        return "0 s" if size < 0.5e-9 else f"{number(value, 2)} µs"
    if digits < 3:
        value = float(f"{value:.{digits}g}")
    return f"{short_figure(value, digits)} {unit}"


def rough_duration(seconds: float | None) -> str:
    """An estimate: "430 ms", "12 s", "3 min"."""
    return duration_text(seconds, digits=2)


def duration_in(seconds: float | None, unit: str) -> str:
    """ "7.41", "63.2", "81,294": the number for a column of one `unit` (h, min, s, ms, µs)."""
    return figure(None if seconds is None else seconds / _UNITS[unit], 3)


def duration_with(seconds: float | None, unit: str) -> str:
    """`duration_in` with its unit, where that is fixed: "63.2 ms"."""
    return _with_unit(duration_in(seconds, unit), unit)


def clock_text(moment: float) -> str:
    """ "14:05:09" of seconds since 1970, in local time."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def date_text(moment: float, now: float) -> str:
    """14:05, yesterday, Mon, 12 Mar, 12 Mar 2025: of seconds since 1970, in local time."""
    return _date_text(moment, datetime.fromtimestamp(now).date())


@lru_cache(maxsize=2**15)  # a list may have ten thousand
def _date_text(moment: float, today: date) -> str:
    then = datetime.fromtimestamp(moment)
    days = (today - then.date()) // timedelta(days=1)
    if days <= 0:
        return f"{then:%H:%M}"
    if days == 1:
        return "yesterday"
    if days < 7:
        return f"{then:%a}"
    return f"{then.day} {then:%b}" + (f" {then.year}" if then.year != today.year else "")


def _long_duration(seconds: int, digits: int) -> str:
    if seconds >= 48 * 3600:
        return f"{round(seconds / 86400)} days"
    minutes = round(seconds / 60)
    if minutes >= 60:
        big, small = "h", "min"
        count, rest = divmod(minutes, 60)
    else:
        big, small = "min", "s"
        count, rest = divmod(seconds, 60) if digits > 2 else (minutes, 0)
    return f"{count} {big} {rest} {small}" if rest else f"{count} {big}"


# Sizes and rates ----------------------------------------------------------------------------

GIB = 2**30
_BINARY = (("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10))


def bytes_text(size: float | None) -> str:
    """ "1.40 GiB", "512 MiB", "17 B": binary units, three significant digits. `parse_bytes` of
    app.units reads it back."""
    if size is None or not math.isfinite(size):
        return NOTHING
    for unit, factor in _BINARY:
        if abs(size) >= 0.9995 * factor and round(abs(size)) >= 1024:
            return f"{figure(size / factor, 3).replace(',', '')} {unit}"
    return f"{size:.0f} B"


def gib(size: float | None) -> str:
    """ "1.40": the number for a column, an axis or a card in GiB."""
    return number(None if size is None else size / GIB, 2)


def progress_text(done: float, total: float) -> str:
    """ "412 MiB of 1.40 GiB"."""
    return f"{bytes_text(done)} of {bytes_text(total)}"


def rate_text(per_second: float | None, unit: str = "tok/s") -> str:
    """ "81.3 tok/s", "4.20 req/s"."""
    return _with_unit(figure(per_second, 3), unit)


def speed_text(bytes_per_s: float | None) -> str:
    """ "11.0 MiB/s": of files and networks."""
    return _with_unit(bytes_text(bytes_per_s), "/s", gap="")


def bandwidth_text(bytes_per_s: float | None) -> str:
    """ "29.9 GB/s", "3.35 TB/s": of memory, in the decimal units of its makers."""
    return _decimal(bytes_per_s, "B/s")


def compute_text(flops_per_s: float | None) -> str:
    """ "812 GFLOP/s", "989 TFLOP/s"."""
    return _decimal(flops_per_s, "FLOP/s")


def operations_text(count: float | None) -> str:
    """ "34.1 MFLOP", "1.20 GFLOP"."""
    return _decimal(count, "FLOP")


def _decimal(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * factor:
            return f"{figure(value / factor, 3)} {prefix}{unit}"
    return f"{number(value)} {unit}"


def _with_unit(text: str, unit: str, gap: str = " ") -> str:
    return text if text == NOTHING else f"{text}{gap}{unit}"


def _decimals(value: float, digits: int) -> int:
    """Decimals for `digits` significant digits, after rounding: 9.996 needs one."""
    if abs(value) < 0.5 / 10**digits:
        return 0
    exponent = math.floor(math.log10(abs(value)))
    exponent += round(abs(value) / 10.0**exponent, digits - 1) >= 10
    return min(max(digits - 1 - exponent, 0), digits)


# Names --------------------------------------------------------------------------------------

UNQUANTIZED = "unquantized"

_PRECISIONS = {
    "float32": "FP32", "float": "FP32", "fp32": "FP32", "f32": "FP32",
    "float16": "FP16", "half": "FP16", "fp16": "FP16", "f16": "FP16",
    "bfloat16": "BF16", "bf16": "BF16",
    "float8_e4m3fn": "FP8", "fp8": "FP8", "int8": "INT8", "int4": "INT4", "nf4": "NF4",
    "fp4": "FP4", "awq": "AWQ", "gptq": "GPTQ", "rtn": "RTN",
    "none": UNQUANTIZED,
}  # fmt: skip

SPECULATIVE = {"ngram": "n-gram", "draft_model": "draft model", "eagle3": "EAGLE-3"}
"""Display names of the speculative methods."""


def precision_name(value: str) -> str:
    """ "BF16" of bfloat16, "INT8", "unquantized" of none; other names unchanged."""
    return _PRECISIONS.get(value.removeprefix("torch.").lower(), value)


def kv_precision_text(keys: str, values: str) -> str:
    """ "KV INT8"; "K INT8, V BF16"; "" where not reported."""
    keys, values = precision_name(keys), precision_name(values)
    if keys == values:
        return f"KV {keys}" if keys else ""
    return f"K {keys}, V {values}"


def weights_text(quantization: str) -> str:
    """ "INT4 weights (groups of 128)" of "int4, groups of 128"; "" of unquantized ones."""
    name, _, details = quantization.partition(", ")
    if name in ("", "none"):
        return ""
    return f"{precision_name(name)} weights" + (f" ({details})" if details else "")


def speculative_name(method: str) -> str:
    return SPECULATIVE.get(method, method)


def setting_text(value: object) -> str:
    """The value of a setting: "auto", "on", "2.00 GiB", "4,096", "90 %", "BF16", "n-gram".

    Settings with fractions are shares, in percent as in their fields."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return bytes_text(value) if value >= 2**20 else number(value)
    if isinstance(value, float):
        return percent_text(value, 3)
    text = f"{value}"
    if text.startswith("k=") and ",v=" in text:
        return kv_precision_text(*(side[2:] for side in text.split(",")))
    return SPECULATIVE.get(text) or precision_name(text)
