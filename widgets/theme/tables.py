"""`Theme`: the named colours of one mode, read from `light.json` and `dark.json`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QImage

MINIMUM_TEXT_CONTRAST = 4.5  # WCAG 2.1, success criterion 1.4.3
MINIMUM_GRAPHIC_CONTRAST = 3.0  # criterion 1.4.11


def rgb(color: str) -> tuple[int, int, int]:
    """Channels of "#rrggbb", 0 to 255. Raises ValueError for any other form."""
    if len(color) != 7 or not color.startswith("#"):
        raise ValueError(f"{color!r} is not a colour of the form #rrggbb")
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _linear(channel: int) -> float:
    c = channel / 255
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def luminance(color: str) -> float:
    """Relative luminance, 0 (black) to 1 (white)."""
    red, green, blue = (_linear(c) for c in rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mix(color: str, other: str, share: float) -> str:
    """`color` with `share` (0 to 1) of `other` in it."""
    pairs = zip(rgb(color), rgb(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def readable(color: str, surface: str, minimum: float = MINIMUM_TEXT_CONTRAST) -> str:
    """`color`, moved towards black or white just as far as `minimum` contrast on `surface` asks.

    The hue stays, so that a label is recognised as its line's.
    """
    end = "#000000" if luminance(surface) > 0.18 else "#ffffff"
    for percent in range(0, 101, 2):
        candidate = mix(color, end, percent / 100)
        if contrast(candidate, surface) >= minimum:
            return candidate
    return end


Pixels = NDArray[np.uint32]  # 0xffRRGGBB


def word(color: str) -> int:
    """ "#rrggbb" as the 32 bits of a pixel."""
    red, green, blue = rgb(color)
    return 0xFF000000 | red << 16 | green << 8 | blue


def to_image(pixels: Pixels) -> QImage:
    """pixels[height, width] as an image with memory of its own: the array may go."""
    height, width = pixels.shape
    return QImage(pixels.data, width, height, 4 * width, QImage.Format.Format_RGB32).copy()


Mode = Literal["light", "dark"]
_folder = Path(__file__).parents[2] / "resources" / "theme"


@dataclass(frozen=True, slots=True)
class SeriesColors:
    """What a colour means in every chart, map and timeline (Okabe-Ito, safe for the colour-blind).

    `owners` colours blocks by the request that holds them, in turn.
    """

    weights: str
    kv_used: str
    kv_cached: str
    other: str
    limit: str
    gpu_memory: str
    queued: str
    prefill: str
    cached: str
    decode: str
    draft: str
    preempted: str
    free: str
    p50: str
    p99: str
    tokens_in: str
    tokens_out: str
    running: str
    waiting: str
    kv_usage: str
    arithmetic: str
    launch: str
    python: str
    prefix_hits: str
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Theme:
    """Named colours of one mode, each "#rrggbb". Surfaces: window, panel and raised."""

    mode: Mode
    window: str
    panel: str
    raised: str
    border: str
    border_strong: str
    text: str
    text_muted: str
    text_disabled: str
    accent: str
    accent_text: str
    accent_hover: str
    accent_pressed: str
    hover: str
    pressed: str
    selection: str
    selection_text: str
    danger: str
    danger_text: str
    warning: str
    success: str
    badge_live: str
    badge_rebuild: str
    badge_reload: str
    state_idle: str
    state_busy: str
    state_loading: str
    state_error: str
    code_background: str
    code_text: str
    code_keyword: str
    code_string: str
    code_number: str
    code_comment: str
    code_function: str
    code_name: str
    user_bubble: str
    scrollbar: str
    grid: str
    axis: str
    sample_dot: str
    series: SeriesColors

    @property
    def is_dark(self) -> bool:
        return self.mode == "dark"

    def value(self, name: str) -> str:
        """A colour, or a series colour, by name. Raises KeyError for an unknown one."""
        for table in (self, self.series):
            found = getattr(table, name, None)
            if isinstance(found, str) and found.startswith("#"):
                return found
        raise KeyError(f"The theme has no colour named {name!r}.")

    def color(self, name: str, alpha: float = 1.0) -> QColor:
        """`value(name)` as a QColor with opacity `alpha` (0 to 1)."""
        found = QColor(self.value(name))
        found.setAlphaF(alpha)
        return found

    def pixel(self, name: str) -> int:
        """`value(name)` as the 32 bits of a pixel."""
        return word(self.value(name))

    def line_color(self, name: str) -> str:
        """A series colour for a thin line on a panel: at least 3:1 against it."""
        return _readable(self.value(name), self.panel, MINIMUM_GRAPHIC_CONTRAST)

    def label_color(self, name: str, surface: str = "panel") -> str:
        """A series colour for text on `surface`: at least 4.5:1 against it."""
        return _readable(self.value(name), self.value(surface), MINIMUM_TEXT_CONTRAST)


_readable = cache(readable)


def set_theme_folder(path: Path) -> None:
    """Where light.json and dark.json are; call before `apply_theme`."""
    global _folder
    _folder = Path(path)
    load_theme.cache_clear()


@cache
def load_theme(mode: Mode) -> Theme:
    """The table of one mode. Raises ValueError that names missing, unknown or malformed colours."""
    path = _folder / f"{mode}.json"
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    series: dict[str, Any] = values.pop("series", {})
    _check_names(path, Theme, {*values, "series"})
    _check_names(path, SeriesColors, set(series))
    owners = tuple(series.pop("owners"))
    found = Theme(**values, series=SeriesColors(**series, owners=owners))
    colors = [v for k, v in values.items() if k != "mode"] + [*series.values(), *owners]
    bad = [c for c in colors if not QColor.isValidColorName(c) or len(c) != 7]
    if bad or found.mode != mode:
        raise ValueError(f"{path}: not a colour of the form #rrggbb: {bad}, mode {found.mode}")
    return found


def _check_names(path: Path, table: type, names: set[str]) -> None:
    expected = {field.name for field in dataclasses.fields(table)}
    if names != expected:
        missing, unknown = sorted(expected - names), sorted(names - expected)
        raise ValueError(f"{path}: missing {missing}, unknown {unknown}")
