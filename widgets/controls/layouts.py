"""Layouts, labels and buttons in one expression each.

vbox(title, (area, 1), hbox(start, STRETCH), of=self, spacing=SPACE_2)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QBoxLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from engine.units import unbroken
from widgets.theme.theme import SPACE_2, SPACE_4

STRETCH = None
Part = QWidget | QLayout
Item = Part | tuple[Part, int] | tuple[Part, int, Qt.AlignmentFlag] | int | None
"""A widget or layout, with its stretch factor and alignment; pixels; or STRETCH."""
L = TypeVar("L", bound=QBoxLayout)
W = TypeVar("W", bound=QWidget)
Margins = tuple[int, int, int, int]
NO_MARGINS: Margins = (0, 0, 0, 0)


def vbox(
    *items: Item, of: QWidget | None = None, spacing: int = SPACE_2, margins: Margins = NO_MARGINS
) -> QVBoxLayout:
    """A vertical layout, of the widget `of`. spacing: -1 for the style's."""
    return _filled(QVBoxLayout(of) if of is not None else QVBoxLayout(), items, spacing, margins)


def hbox(
    *items: Item, of: QWidget | None = None, spacing: int = SPACE_2, margins: Margins = NO_MARGINS
) -> QHBoxLayout:
    """A horizontal layout, of the widget `of`. spacing: -1 for the style's."""
    return _filled(QHBoxLayout(of) if of is not None else QHBoxLayout(), items, spacing, margins)


def _filled(layout: L, items: tuple[Item, ...], spacing: int, margins: Margins) -> L:
    layout.setContentsMargins(*margins)
    layout.setSpacing(spacing)
    for item in items:
        if item is None:
            layout.addStretch(1)
        elif isinstance(item, int):
            layout.addSpacing(item)
        else:
            part, stretch, *alignment = item if isinstance(item, tuple) else (item, 0)
            if isinstance(part, QWidget):
                layout.addWidget(part, stretch, *alignment)
            else:
                layout.addLayout(part, stretch)
    return layout


class Label(QLabel):
    """Where it wraps, a number and its unit stay together; `text` is what was set."""

    def __init__(self, text: str = "", **properties: Any) -> None:
        super().__init__(**properties)
        self._text = ""
        self.setText(text)

    def text(self) -> str:
        return self._text

    def setText(self, text: str) -> None:
        self._text = text
        super().setText(unbroken(text))


def label(text: str = "", role: str = "") -> Label:
    """A label in a `role` of the stylesheet."""
    made = Label(text)
    made.setProperty("role", role)
    return made


def dressed(widget: W, name: str = "", tip: str = "", **properties: object) -> W:
    """`widget` with an accessible name, a tooltip and properties of the stylesheet."""
    widget.setAccessibleName(name)
    widget.setToolTip(tip)
    for key, value in properties.items():
        widget.setProperty(key, value)
    return widget


def empty_layout(layout: QLayout) -> None:
    """Remove and delete all widgets of `layout`."""
    while (item := layout.takeAt(0)) is not None:
        widget = item.widget()
        if widget is not None:
            widget.hide()
            widget.deleteLater()


def wrapped(role: str = "", text: str = "") -> Label:
    """A plain-text label with word wrap that adapts to the available width."""
    made = dressed(Label(text, textFormat=Qt.TextFormat.PlainText, wordWrap=True), role=role)
    made.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    return made


def centered(text: str) -> Label:
    """Small centred text of an empty view, seen in a low one too."""
    made = Label(text, wordWrap=True, alignment=Qt.AlignmentFlag.AlignCenter)
    made.setContentsMargins(SPACE_4, 0, SPACE_4, 0)
    return dressed(made, role="small")


def stack(*pages: QWidget) -> QStackedWidget:
    """Shows one of `pages`, the first one to begin with."""
    made = QStackedWidget()
    for page in pages:
        made.addWidget(page)
    return made


def button(text: str, do: Callable[[], object], tip: str = "", kind: str = "") -> QPushButton:
    """`kind`: "primary", "danger", "flat" or "link" of the stylesheet."""
    made = QPushButton(text)
    made.setToolTip(tip)
    if kind:
        made.setProperty("kind", kind)
    made.clicked.connect(lambda: do())
    return made
