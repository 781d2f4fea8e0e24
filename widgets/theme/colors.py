"""Colour arithmetic on "#rrggbb" strings: contrast after WCAG 2.1, mixing, readable variants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QImage

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
