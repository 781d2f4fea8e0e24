"""Pictures made from arrays: one 32-bit word per pixel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtGui import QImage

from widgets.colors import rgb

Pixels = NDArray[np.uint32]  # 0xffRRGGBB


def word(color: str) -> int:
    """ "#rrggbb" as the 32 bits of a pixel."""
    red, green, blue = rgb(color)
    return 0xFF000000 | red << 16 | green << 8 | blue


def to_image(pixels: Pixels) -> QImage:
    """pixels[height, width] as an image with memory of its own: the array may go."""
    height, width = pixels.shape
    return QImage(pixels.data, width, height, 4 * width, QImage.Format.Format_RGB32).copy()
