"""An area that is read, not filled in: by keyboard, too."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QScrollArea


def scroll_by_keys(area: QScrollArea) -> None:
    """Tab comes to `area` while there is more in it than it shows, so that the arrow keys scroll
    it, and a ring says that it has the keyboard. (A form's area needs no stop: its fields have it,
    and bring themselves into view.)"""
    area.setProperty("ring", True)
    bars = (area.verticalScrollBar(), area.horizontalScrollBar())

    def follow() -> None:
        scrolls = any(bar.maximum() > bar.minimum() for bar in bars)
        area.setFocusPolicy(Qt.FocusPolicy.TabFocus if scrolls else Qt.FocusPolicy.NoFocus)

    for bar in bars:
        bar.rangeChanged.connect(follow)
    follow()
