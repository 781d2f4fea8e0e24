"""What of a window is seen in part, whatever the font and the size of text."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QHeaderView,
    QLabel,
    QScrollArea,
    QWidget,
)
from pytestqt.qtbot import QtBot

_ROUNDING = 1  # pixel
WAIT_MS, SETTLES_MS = 8_000, 50


def cuts(root: QWidget) -> list[str]:
    """A line for each part below `root` that cannot be read whole though it could be: content
    that is wider than an area which does not scroll sideways, what lies beyond its parent, labels,
    buttons and headings that are narrower (or, wrapped, lower) than their words."""
    found = []
    for widget in (root, *root.findChildren(QWidget)):
        if not widget.isVisible() or widget.visibleRegion().isEmpty():
            continue
        problem = _problem(widget)
        if problem:
            found.append(f"{_path(widget)}: {problem}")
    return found


def expect_whole(qtbot: QtBot, root: QWidget) -> None:
    """Once what was shown just now has been laid out."""

    def is_whole() -> None:
        assert cuts(root) == []

    qtbot.wait(SETTLES_MS)
    qtbot.waitUntil(is_whole, timeout=WAIT_MS)


def _problem(widget: QWidget) -> str:
    match widget:
        case QScrollArea() if _is_fixed_sideways(widget) and widget.widget() is not None:
            content, room = widget.widget().width(), widget.viewport().width()
            return f"{content} pixels of content in {room}" if content > room else ""
        case QLabel() if widget.text() and widget.wordWrap() and widget.hasHeightForWidth():
            needed = widget.heightForWidth(widget.width())
            too_low = needed > widget.height() + _ROUNDING
            return f"{widget.text()[:40]!r} needs {needed}, has {widget.height()}" * too_low
        case QLabel() if type(widget) is QLabel and widget.text() and not widget.wordWrap():
            return _too_narrow(widget, widget.text(), widget.minimumSizeHint().width())
        case QAbstractButton() if widget.text():
            return _too_narrow(widget, widget.text(), widget.sizeHint().width())
        case QHeaderView() if widget.orientation() is Qt.Orientation.Horizontal:
            return "; ".join(_narrow_headings(widget))
    parent = widget.parentWidget()
    if parent is None or widget.isWindow() or isinstance(parent, QAbstractScrollArea):
        return ""
    beyond = widget.geometry().right() > parent.width() and not _scrolls_sideways(widget)
    return f"ends at {widget.geometry().right()} of {parent.width()}" * beyond


def _too_narrow(widget: QWidget, text: str, needed: int) -> str:
    is_cut = needed > widget.width() + _ROUNDING
    return f"{text[:40]!r} needs {needed}, has {widget.width()}" * is_cut


def _narrow_headings(header: QHeaderView) -> list[str]:
    found = []
    for section in range(header.count()):
        needed, has = header.sectionSizeHint(section), header.sectionSize(section)
        if not header.isSectionHidden(section) and needed > has + _ROUNDING:
            name = header.model().headerData(section, Qt.Orientation.Horizontal)
            found.append(f"{name} needs {needed}, has {has}")
    return found


def _is_fixed_sideways(area: QAbstractScrollArea) -> bool:
    return area.horizontalScrollBarPolicy() is Qt.ScrollBarPolicy.ScrollBarAlwaysOff


def _scrolls_sideways(widget: QWidget) -> bool:
    above = widget.parentWidget()
    while above is not None:
        if isinstance(above, QAbstractScrollArea) and not _is_fixed_sideways(above):
            return True
        above = above.parentWidget()
    return False


def _path(widget: QWidget) -> str:
    names: list[str] = []
    above: QWidget | None = widget
    while above is not None and len(names) < 3:
        names.append(above.accessibleName() or type(above).__name__)
        above = above.parentWidget()
    return " < ".join(names)
