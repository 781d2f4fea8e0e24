"""`ReadingPlace`: keeps the visible text in place while the text size changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import shiboken6
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QWidget

from widgets.chat.message_view import MessageView
from widgets.theme.restyling import restyling

if TYPE_CHECKING:
    from widgets.chat.transcript import Transcript


class _Place(NamedTuple):
    """A line, given by a `character` in the text of `view`, and pixels from its top to the upper
    edge of the viewport."""

    view: MessageView
    character: int
    distance: int


class ReadingPlace(QObject):
    """Keeps the top line of `transcript` in place until the user scrolls, unless it follows its
    end.

    Width and height affect each other (the scroll bar appears or disappears), so a layout settles
    in several rounds. The scroll bar's range may change before or after the views are placed: both
    are awaited."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._transcript = transcript
        self._place: _Place | None = None
        self._is_changing = False  # sizes, while windows keep theirs
        bar = transcript.verticalScrollBar()
        bar.rangeChanged.connect(self._go_back)
        bar.valueChanged.connect(self._value_changed)
        restyling().beginning.connect(self._take)
        restyling().arranged.connect(self._arranged)

    def _take(self) -> None:
        transcript = self._transcript
        view = None if transcript.follows else transcript.first_in_view
        self._is_changing = True
        if view is not None and self._place is not None and self._place.view is view:
            return  # not scrolled since: text that grows and shrinks ends where it began
        self._let_go()
        if view is None:
            return
        edge = transcript.verticalScrollBar().value()
        character = first_character(transcript, view)
        line = transcript.top_of(view) + top_of_line(view, character)
        self._place = _Place(view, character, edge - line)
        for widget in _moving(view):
            widget.installEventFilter(self)

    def _let_go(self) -> None:
        place, self._place = self._place, None
        if place is not None and shiboken6.isValid(place.view):
            for widget in _moving(place.view):
                widget.removeEventFilter(self)

    def _arranged(self) -> None:
        self._is_changing = False
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        self._go_back()

    def eventFilter(self, target: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Move, QEvent.Type.Resize):
            self._go_back()
        return False

    def _value_changed(self) -> None:
        if not (self._is_changing or self._transcript.is_moving):
            self._let_go()

    def _go_back(self) -> None:
        place, transcript = self._place, self._transcript
        if place is None or self._is_changing or transcript.is_moving:
            return
        if transcript.follows or place.view not in transcript.views:
            self._let_go()
            return
        line = transcript.top_of(place.view) + top_of_line(place.view, place.character)
        transcript.is_moving = True  # the end of a range that is yet to grow is not the end
        transcript.verticalScrollBar().setValue(line + place.distance)
        transcript.is_moving = False


def first_character(transcript: Transcript, view: MessageView) -> int:
    """The character in the text of `view` that begins the top line of the viewport."""
    edge = transcript.verticalScrollBar().value()
    inside = edge - transcript.top_of(view) - view.text.mapTo(view, QPoint()).y()
    inside = max(0, min(inside, view.text.height() - 1))
    return view.text.cursorForPosition(QPoint(0, inside)).position()


def top_of_line(view: MessageView, character: int) -> int:
    """Top of the line with a character, in its view's coordinates."""
    cursor = QTextCursor(view.text.document())
    cursor.setPosition(min(character, view.text.document().characterCount() - 1))
    return view.text.mapTo(view, view.text.cursorRect(cursor).topLeft()).y()


def _moving(view: MessageView) -> Iterator[QWidget]:
    """Objects whose events can move a line of `view`."""
    column = view.parentWidget()
    yield from (view, view.text) if column is None else (view, view.text, column)
