"""`Theme`: the named colours of one mode, read from `light.json` and `dark.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
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
    """`color` mixed with `share` (0 to 1) of `other`."""
    pairs = zip(rgb(color), rgb(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def readable(color: str, surface: str, minimum: float = MINIMUM_TEXT_CONTRAST) -> str:
    """`color`, moved towards black or white as far as `minimum` contrast on `surface` requires. The
    hue stays, so that a label matches its line."""
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
    """pixels[height, width] as an image with its own memory: the array may be freed."""
    height, width = pixels.shape
    return QImage(pixels.data, width, height, 4 * width, QImage.Format.Format_RGB32).copy()


Mode = Literal["light", "dark"]
Color = Annotated[str, msgspec.Meta(pattern="^#[0-9a-fA-F]{6}$")]
_folder = Path(__file__).parents[2] / "resources" / "theme"


class SeriesColors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Series colours of every chart, map and timeline (Okabe-Ito, safe for the colour-blind).
    `owners`: colours of requests in the block map, in turn."""

    weights: Color
    kv_used: Color
    kv_cached: Color
    kv_reserved: Color
    other: Color
    limit: Color
    gpu_memory: Color
    queued: Color
    prefill: Color
    cached: Color
    decode: Color
    draft: Color
    preempted: Color
    free: Color
    p50: Color
    p99: Color
    tokens_in: Color
    tokens_out: Color
    running: Color
    waiting: Color
    kv_usage: Color
    arithmetic: Color
    launch: Color
    python: Color
    prefix_hits: Color
    owners: tuple[Color, ...]


class Theme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named colours of one mode, each "#rrggbb". Surfaces: window, panel and raised."""

    mode: Mode
    window: Color
    panel: Color
    raised: Color
    border: Color
    border_strong: Color
    text: Color
    text_muted: Color
    text_disabled: Color
    accent: Color
    accent_text: Color
    accent_hover: Color
    accent_pressed: Color
    hover: Color
    pressed: Color
    selection: Color
    selection_text: Color
    danger: Color
    danger_text: Color
    warning: Color
    success: Color
    badge_live: Color
    badge_rebuild: Color
    badge_reload: Color
    state_idle: Color
    state_busy: Color
    state_loading: Color
    state_error: Color
    code_background: Color
    code_text: Color
    code_keyword: Color
    code_string: Color
    code_number: Color
    code_comment: Color
    code_function: Color
    code_name: Color
    user_bubble: Color
    scrollbar: Color
    grid: Color
    axis: Color
    sample_dot: Color
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


@cache
def load_theme(mode: Mode) -> Theme:
    """The table of one mode. Raises ValueError for a missing, unknown or malformed colour."""
    path = _folder / f"{mode}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Theme)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from error
