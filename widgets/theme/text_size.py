"""The size of all text, changed while the window is open."""

from __future__ import annotations

from functools import partial
from typing import get_args

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from widgets.theme.fonts import SizeRole, point_size, set_text_scale
from widgets.theme.theme import renew_look

KEPT_FONT = "_q_styleSheetWidgetFont"
"""Where QStyleSheetStyle keeps a widget's own font, to go back to it with every new sheet."""


_wanted = 1.0  # text_scale(), or what it is about to be


def apply_text_size(app: QApplication, percent: int) -> None:
    """Text of `percent` of the system's size, in every widget there is and will be."""
    global _wanted
    if percent / 100 == _wanted:
        return
    _wanted = percent / 100
    if app.styleSheet():
        renew_look(app, partial(_scale_fonts, app, _wanted))
    else:
        _scale_fonts(app, _wanted)


def _scale_fonts(app: QApplication, scale: float) -> None:
    roles: tuple[SizeRole, ...] = get_args(SizeRole)
    before = {point_size(role): role for role in roles}
    set_text_scale(scale)
    for widget in app.allWidgets():
        if not widget.testAttribute(Qt.WidgetAttribute.WA_SetFont):
            continue
        font = widget.font()  # its own: the application's does not reach it
        role = before.get(round(font.pointSizeF(), 1))
        if role is not None:
            font.setPointSizeF(point_size(role))
            widget.setFont(font)
            if widget.property(KEPT_FONT) is not None:
                widget.setProperty(KEPT_FONT, font)
