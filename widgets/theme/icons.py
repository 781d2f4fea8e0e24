"""Icons: one family of SVG drawings (24-pixel grid, 1.75-pixel strokes) in the theme's colours.

    button.setIcon(icon("copy"))              once
    set_icon(button, "copy")                  and again whenever the theme changes

The drawings stroke with `currentColor`; a name of the theme takes its place. Each icon holds
pixmaps for its usual sizes at 1x and 2x, so it stays crisp at 200 %.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol, cast

import shiboken6
from PySide6.QtCore import QByteArray, QObject, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from widgets.theme.theme import Theme, theme, theme_notifier

# Device pixels: 16, 18, 20, 24 and 32 at 1x and 2x.
_SIZES = (16, 18, 20, 24, 32, 36, 40, 48, 64)
_folder = Path(__file__).parents[2] / "resources" / "icons"


class _TakesIcon(Protocol):
    def setIcon(self, icon: QIcon) -> None: ...


def icon(name: str, color: str = "text_muted") -> QIcon:
    """The icon `name`; `color` is a theme name. Raises KeyError for an unknown icon or colour.

    Disabled, it is drawn in `text_disabled`; under the pointer and switched on, in `text` where
    `color` is the muted one, so that toolbar buttons answer.
    """
    return _icon(name, color, theme())


def icon_pixmap(name: str, color: str = "text_muted", size: int = 16, ratio: float = 1) -> QPixmap:
    """The icon as a pixmap of `size` logical pixels at `ratio` device pixels each."""
    return _render(name, theme().value(color), round(size * ratio), ratio)


def set_icon(target: QObject, name: str, color: str = "text_muted") -> None:
    """Give a button or an action an icon that follows the theme."""
    _follow_theme()
    _bound[target] = (name, color)
    cast(_TakesIcon, target).setIcon(icon(name, color))


_bound: weakref.WeakKeyDictionary[QObject, tuple[str, str]] = weakref.WeakKeyDictionary()


@cache
def _follow_theme() -> None:
    theme_notifier().changed.connect(_renew_bound_icons)
    theme_notifier().preparations.append(_draw_bound_icons)


def _draw_bound_icons(table: Theme) -> Iterator[None]:
    """Draw all sizes and states of the bound icons, in slices."""
    for name, color in set(_bound.values()):
        _icon(name, color, table)
        yield


def _renew_bound_icons() -> None:
    for target, (name, color) in list(_bound.items()):
        if shiboken6.isValid(target):
            cast(_TakesIcon, target).setIcon(icon(name, color))


@cache
def _source(name: str) -> str:
    file = _folder / f"{name}.svg"
    if not file.is_file():
        raise KeyError(f"There is no icon named {name!r} in {_folder}.")
    return file.read_text(encoding="utf-8")


def _render(name: str, color: str, pixels: int, ratio: float = 1) -> QPixmap:
    svg = _source(name).replace("currentColor", color)
    pixmap = QPixmap(QSize(pixels, pixels))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    QSvgRenderer(QByteArray(svg.encode())).render(painter, QRectF(0, 0, pixels, pixels))
    painter.end()
    pixmap.setDevicePixelRatio(ratio)
    return pixmap


@cache
def _icon(name: str, color: str, table: Theme) -> QIcon:
    normal = table.value(color)
    lit = table.text if color == "text_muted" else normal
    states = {
        (QIcon.Mode.Normal, QIcon.State.Off): normal,
        (QIcon.Mode.Normal, QIcon.State.On): lit,
        (QIcon.Mode.Active, QIcon.State.Off): lit,
        (QIcon.Mode.Active, QIcon.State.On): lit,
        (QIcon.Mode.Selected, QIcon.State.Off): lit,
        (QIcon.Mode.Disabled, QIcon.State.Off): table.text_disabled,
    }
    made = QIcon()
    pixmaps = {c: [_render(name, c, size) for size in _SIZES] for c in set(states.values())}
    for (mode, state), state_color in states.items():
        for pixmap in pixmaps[state_color]:
            made.addPixmap(pixmap, mode, state)
    return made
