"""Axes of a sweep as they are typed: "concurrency=1,2,4", "max_num_seqs=4,8". No Qt."""

from __future__ import annotations

from typing import Any

from app.bench.sweep import ENGINE, LOADS, NO_SETTINGS, Axis, axis_title
from app.units import parse_integer, parse_number, setting_value
from engine.config import SETTINGS
from engine.errors import ConfigError

MAX_CONCURRENCY, MAX_RATE = 4096, 1e6
MAX_POINTS = 256


USUAL = {
    "concurrency": "1,2,4,8",
    "request_rate": "0.5,1,2,4",
    "max_num_seqs": "1,2,4,8,16,32",
    "max_num_batched_tokens": "64,128,256,512,1024,2048",
    "num_speculative_tokens": "1,2,4,8",
    "block_size": "8,16,32,64",
    "kv_cache_dtype": "auto,fp8,int8",
    "batching": "continuous,static",
}



def usual_values(name: str, value: Any = None) -> str:
    """Values of a load or a setting that is chosen by its name alone: the usual ones, its choices,
    or those around its `value`; "" where there are none."""
    if name in USUAL:
        return USUAL[name]
    setting = SETTINGS[name]
    if setting.type is bool:
        return "on,off"
    if setting.choices:
        return ",".join(setting.choices)
    if setting.type is not int or not value:
        return ""
    around = (value // 4, value // 2, value, min(2 * value, setting.maximum or value))
    return ",".join(str(int(one)) for one in sorted({max(1, one) for one in around}))


def with_usual_values(text: str) -> str:
    """ "block_size=8,16,32,64" of "block_size", else as it is. Raises ConfigError."""
    name = text.strip().removeprefix("--").replace("-", "_")
    if "=" in text or name not in SETTINGS:
        return text
    values = usual_values(name)
    if not values:
        raise ConfigError(f"{name} has no usual values.", f"Use {name}=V1,V2.")
    return f"{name}={values}"


def parse_axis(text: str) -> Axis:
    """An axis of "name=v1,v2", or with semicolons between values that contain commas. Raises
    ConfigError."""
    name, _, listed = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if name not in NO_SETTINGS and (name not in SETTINGS or name == "model"):
        known = ", ".join((*NO_SETTINGS, *(n for n in SETTINGS if n != "model")))
        raise ConfigError(f"Unknown setting {name!r} in {text!r}.", f"Sweep one of {known}.")
    words = [word.strip() for word in listed.split(";" if ";" in listed else ",")]
    values = [_value(name, word) for word in words if word]
    if not values:
        raise ConfigError(f"{text!r} has no values.", f"Example: {name}=1,2,4.")
    return Axis(name, tuple(dict.fromkeys(values)))


def parse_axes(texts: list[str]) -> tuple[Axis, ...]:
    """Settings and engines before loads: they change as rarely as possible. Raises ConfigError."""
    axes = [parse_axis(text) for text in texts]
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names) or set(LOADS) <= set(names):
        raise ConfigError(
            f"The sweep repeats an axis: {', '.join(names)}.",
            "Use each setting once, and either concurrency or request_rate.",
        )
    settings = [name for name in names if name not in NO_SETTINGS]
    if ENGINE in names and settings:
        raise ConfigError(
            f"A comparison of engines cannot sweep {', '.join(settings)}.",
            "Sweep a load, or add one connection for each value.",
        )
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_POINTS:
        raise ConfigError(f"The sweep has {count:,} points.", f"Use at most {MAX_POINTS}.")
    return tuple(sorted(axes, key=lambda axis: axis.name in LOADS))


def _value(name: str, word: str) -> Any:
    if name == ENGINE:
        return word
    if name not in LOADS:
        return setting_value(SETTINGS[name], word)
    most = MAX_CONCURRENCY if name == "concurrency" else MAX_RATE
    try:
        value = parse_integer(word) if name == "concurrency" else parse_number(word)
    except ValueError:
        value = 0
    if not 0 < value <= most:
        title = axis_title(name)
        raise ConfigError(f"{title} is {word[:40]!r}.", f"Use a number above 0, up to {most:,g}.")
    return value
