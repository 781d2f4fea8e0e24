"""The fonts: two text sizes, one large size for leading figures, one monospaced face.

Inter and JetBrains Mono ship with the program (resources/fonts); the system's fonts supply the
characters that these lack. Everything is in points relative to the system's font, so a user who
made that larger gets a larger window.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from PySide6.QtGui import QFont, QFontDatabase, QFontMetricsF

SizeRole = Literal["small", "body", "large"]
_SCALE: dict[SizeRole, float] = {"small": 0.86, "body": 1.0, "large": 1.36}
_SMALLEST_BODY, _LARGEST_BODY = 10.0, 14.0  # points
_text_scale = 1.0
_tabular: dict[str, bool] = {}
"""Whether a font has tabular digits, by its key: a cache, as measuring is slow."""


_folder = Path(__file__).parents[2] / "resources" / "fonts"


@cache
def _families() -> frozenset[str]:
    """The fonts of the system and of the program; the latter are registered by the first call."""
    for file in sorted(_folder.glob("*.ttf")):
        QFontDatabase.addApplicationFont(str(file))
    return frozenset(QFontDatabase.families())


@cache
def point_size(role: SizeRole) -> float:
    system = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont).pointSizeF()
    body = min(max(system, _SMALLEST_BODY), _LARGEST_BODY)
    return round(body * _SCALE[role] * _text_scale, 1)


def text_scale() -> float:
    """The user's text size relative to the system's, for lengths that depend on text."""
    return _text_scale


def scaled(length: float) -> int:
    """`length` pixels, scaled with a larger text size but not with a smaller one."""
    return round(length * max(1.0, _text_scale))


def set_text_scale(scale: float) -> None:
    """Applies to fonts created from now on: see `widgets.theme.theme`."""
    global _text_scale
    _text_scale = scale
    point_size.cache_clear()
    _ui_font.cache_clear()


def has_tabular_digits(font: QFont) -> bool:
    """Whether all ten digits of `font` are equally wide (to half a percent: hinting rounds)."""
    metrics = QFontMetricsF(font)
    widths = [metrics.horizontalAdvance(digit * 8) for digit in "0123456789"]
    return max(widths) - min(widths) < 0.005 * max(widths)


def ui_font(role: SizeRole = "body", weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The font of labels and controls."""
    return QFont(_ui_font(role, weight))  # a caller may change its own


@cache
def _ui_font(role: SizeRole, weight: QFont.Weight) -> QFont:
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    if "Inter" in _families():
        font.setFamilies(["Inter", font.family()])
    font.setPointSizeF(point_size(role))
    font.setWeight(weight)
    return font


def mono_font(role: SizeRole = "body") -> QFont:
    """The font of code and token ids."""
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    if "JetBrains Mono" in _families():
        font.setFamilies(["JetBrains Mono", font.family()])
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPointSizeF(point_size(role))
    return font


def figure_font(role: SizeRole = "body", weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The font of changing numbers: all digits are equally wide, so that nothing jumps."""
    font = ui_font(role, weight)
    font.setFeature(QFont.Tag("tnum"), 1)
    key = font.key()
    if key not in _tabular:
        _tabular[key] = has_tabular_digits(font)
    if _tabular[key]:
        return font
    font = mono_font(role)
    font.setWeight(weight)
    return font
