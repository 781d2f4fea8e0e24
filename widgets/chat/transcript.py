"""`Transcript`: the messages of a conversation in a scroll area that follows the end.

    records    0 1 2 3 4 5 6 7 8 9 ...            all messages
    views            [ 3 4 5 6 7 ]                a stretch around the visible ones

Making a view takes milliseconds. A few are made at once, then one at a time when idle, up to some
screens above and below; views many screens away are removed. So a conversation of a thousand
messages opens and scrolls like one of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QCoreApplication, QEvent, Qt, QTimer
from PySide6.QtGui import QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QFrame, QScrollArea, QWidget

from widgets.chat.composer import is_text
from widgets.chat.message_view import (
    AssistantMessageView,
    MessageRequests,
    MessageView,
    UserMessageView,
)
from widgets.chat.reading_place import ReadingPlace, first_character, top_of_line
from widgets.chat.records import MessageRecord, MessageRecords
from widgets.controls.buttons import JumpButton
from widgets.controls.frames import Surface
from widgets.controls.layouts import STRETCH, hbox, vbox
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4

COLUMN_WIDTH = 820
"""Maximum width of text: longer lines are hard to read."""
SIDE_MARGIN = SPACE_4
LEAST_HEIGHT = 32
"""Minimum height in pixels: in a low window the composer and its notices have priority."""
FIRST = 6
"""Number of views made at once: about a screen."""
_TEND_MS = 16  # between two views: a frame of the screen, so that scrolling stays smooth
_REST_MS = 100  # after a full screen was opened, which is painted first
_AHEAD, _KEPT = 2, 6
"""Screens beyond the visible ones that are made ahead, and that are kept."""
_NEAR = 24  # pixels from the end that count as the end


class Transcript(QScrollArea):
    """The messages in a scroll area. `requests`: user requests about its messages."""

    def __init__(self) -> None:
        super().__init__(widgetResizable=True)
        self.requests = MessageRequests(self)
        self.requests.edit_begun.connect(self._show_editor)
        self.requests.edit_ended.connect(self._follow_again)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setProperty("ring", True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Conversation")
        self.setMinimumHeight(LEAST_HEIGHT)
        content = Surface()
        self._column_widget = QWidget()
        self._column_widget.setMaximumWidth(COLUMN_WIDTH)
        self._margins = hbox(
            STRETCH, (self._column_widget, 1000), STRETCH, of=content, spacing=-1,
            margins=(SIDE_MARGIN, SPACE_2, SIDE_MARGIN, SPACE_4),
        )  # fmt: skip
        self._column = vbox(STRETCH, of=self._column_widget, spacing=SPACE_3)
        self.setWidget(content)
        self._records = MessageRecords((), list[MessageRecord]().__getitem__)
        self._first = 0  # record of the first view
        self._is_new = False  # opened, and not painted yet
        self._inspected = ""
        self._views: dict[str, MessageView] = {}  # in order, of a stretch of the records
        self.follows = True
        """Whether new text scrolls into view."""
        self._followed = False  # before an editor was opened
        self.is_moving = False
        """Views are added or removed while the visible ones keep their place."""
        self._later = QTimer(self, singleShot=True)
        self._later.timeout.connect(self._tend)
        self._jump = JumpButton(content)  # over the content, Qt would paint all of it anew
        self._jump.clicked.connect(self.jump_to_end)
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(self._range_changed)
        bar.valueChanged.connect(self._value_changed)
        self._reading = ReadingPlace(self)

    # Content ---------------------------------------------------------------------------------

    def set_rows(self, ids: Sequence[str], record_of: Callable[[int], MessageRecord]) -> None:
        """Show records, which `record_of` makes when they come near the screen. Views of messages
        that stay are kept, with their selection."""
        had_end = self._has_end
        is_same = self._records.ids[:1] == list(ids[:1])
        shown = [i for i, view_id in enumerate(ids) if view_id in self._views] if is_same else []
        wanted = set(ids) if shown else set()
        for view_id in [view_id for view_id in self._views if view_id not in wanted]:
            self._remove(view_id)
        self._records = MessageRecords(ids, record_of)
        if not shown:
            self._show_stretch(len(ids) - FIRST, len(ids))
            self.jump_to_end()
            self._is_new = True
            return
        self._first = shown[0]
        end = min(len(ids), shown[-1] + 1 + FIRST) if had_end else shown[-1] + 1
        for place in range(self._first, end):
            view = self._views.get(ids[place])
            if view is None:
                self._insert(place)
            else:
                view.show_record(self._records[place])
        self._sort_views()
        if self.follows and not self._has_end:
            self.jump_to_end()
        self._tend_soon()

    def update_message(self, record: MessageRecord) -> None:
        """Show a changed state of one message; only `append_text` extends its text."""
        self._records.update(record)
        if (view := self._views.get(record.id)) is not None:
            view.show_record(record)

    def append_text(self, message_id: str, text: str) -> None:
        """Extend a reply. Its first text is painted before this returns."""
        view = self._views.get(message_id)
        if isinstance(view, AssistantMessageView):
            is_first = not view.record.text
            view.append(text)
            self._settle([view])
            if is_first:
                self.paint_now(view)
        else:  # not visible: shown when its view is made again
            self._records.append_text(message_id, text)

    def paint_now(self, view: QWidget) -> None:
        """Lay out and paint changes without waiting for the event loop."""
        if self.follows:
            self.jump_to_end()
        view.repaint()

    def _settle(self, changed: Iterable[QWidget]) -> None:
        """Lay out changed views and what is around them. Qt would do it in four turns of the event
        loop, and paint the screen between them."""
        layouts = [view.layout() for view in changed]
        for layout in (*layouts, self._column, self._margins):
            if layout is not None:
                layout.activate()
        QCoreApplication.sendPostedEvents(self.viewport(), QEvent.Type.LayoutRequest)

    def set_inspected(self, message_id: str) -> None:
        """Mark the reply that the inspector shows; "" for none."""
        self._inspected = message_id
        for view in self._views.values():
            self._mark_inspected(view)

    def _mark_inspected(self, view: MessageView) -> None:
        if isinstance(view, AssistantMessageView):
            view.latency.setChecked(view.record.id == self._inspected)

    def view(self, message_id: str) -> MessageView | None:
        return self._views.get(message_id)

    def top_of(self, view: QWidget) -> int:
        """Scroll bar value at which a view begins."""
        return view.y() + self._column_widget.y()

    @property
    def views(self) -> list[MessageView]:
        """The existing views, from top to bottom."""
        return list(self._views.values())

    def unmark(self) -> None:
        """Remove the marks of `reveal`."""
        for view in self._views.values():
            view.mark(())

    def reveal(self, message_id: str, words: Sequence[str] = ()) -> None:
        """Scroll to a message, and in it to the first of `words`, which are marked."""
        place = self._records.places.get(message_id)
        if place is None:
            return
        if message_id not in self._views:
            self._show_stretch(place - FIRST // 3, place + FIRST)
        self.follows = False
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        view = self._views[message_id]
        self.unmark()
        word = view.mark(words)
        top = self.top_of(view)
        if word is not None and word.bottom() > self.viewport().height() - SPACE_4:
            top += word.top() - self.viewport().height() // 2
        self.verticalScrollBar().setValue(top - SPACE_4)

    def reading_place(self) -> tuple[str, int] | None:
        """The first line on the screen: its message and the character that begins it; None at the
        end, which is followed."""
        view = None if self.follows else self.first_in_view
        return None if view is None else (view.record.id, first_character(self, view))

    def go_to_place(self, message_id: str, character: int) -> None:
        """Scroll to what `reading_place` returned."""
        self.reveal(message_id)
        view = self._views.get(message_id)
        if view is not None:
            line = self.top_of(view) + top_of_line(view, character)
            self.verticalScrollBar().setValue(line)

    def edit_message(self, message_id: str) -> None:
        view = self._views.get(message_id)
        if isinstance(view, UserMessageView):
            view.begin_edit()

    def _show_editor(self, message_id: str) -> None:
        self._followed, self.follows = self._followed or self.follows, False
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        self.ensureWidgetVisible(self._views[message_id], 0, SPACE_4)

    def _follow_again(self) -> None:
        if self._followed and not self.edited:
            self.jump_to_end()

    @property
    def edited(self) -> list[UserMessageView]:
        """Views with an open editor."""
        return [v for v in self.views if isinstance(v, UserMessageView) and v.is_editing]

    @property
    def first_in_view(self) -> MessageView | None:
        top = self.verticalScrollBar().value()
        return next((v for v in self.views if self.top_of(v) + v.height() > top), None)

    # Scrolling -------------------------------------------------------------------------------

    def jump_to_end(self) -> None:
        if not self._has_end:
            self._show_stretch(len(self._records) - FIRST, len(self._records))
        self.follows, self._followed = True, False
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())
        self._jump.hide()
        self._tend_soon()

    def jump_to_start(self) -> None:
        if self._first:
            self._show_stretch(0, FIRST)
        self.follows = False
        self.verticalScrollBar().setValue(0)
        self._tend_soon()

    def _range_changed(self, low: int, high: int) -> None:
        bar = self.verticalScrollBar()
        # the column keeps its place when the scroll bar appears
        taken = bar.sizeHint().width() if high > 0 else 0
        self._margins.setContentsMargins(SIDE_MARGIN, SPACE_2, SIDE_MARGIN - taken, SPACE_4)
        if self.follows:
            bar.setValue(high)
        self._show_jump()
        self._tend_soon()

    def _value_changed(self, value: int) -> None:
        self._place_jump()
        if self.is_moving:
            return
        bar = self.verticalScrollBar()
        self.follows = self._has_end and value >= bar.maximum() - _NEAR
        self._show_jump()
        if self._later.remainingTime() > _TEND_MS:
            self._later.stop()
        self._tend_soon()

    def _show_jump(self) -> None:
        bar = self.verticalScrollBar()
        self._jump.setVisible(not self.follows and bar.maximum() > 0)
        self._place_jump()

    def _place_jump(self) -> None:
        if not self._jump.isHidden():
            self._jump.place(self.viewport().rect().translated(0, self.verticalScrollBar().value()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_jump()
        self._tend_soon()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._tend_soon()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Home:
            self.jump_to_start()
        elif event.key() == Qt.Key.Key_End:
            self.jump_to_end()
        elif is_text(event):
            self.requests.typed.emit(event.text())
        else:
            super().keyPressEvent(event)

    # Views -----------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """Index after the last record with a view."""
        return self._first + len(self._views)

    @property
    def _has_end(self) -> bool:
        return self._end == len(self._records)

    def _show_stretch(self, first: int, end: int) -> None:
        """Make views for exactly these records."""
        for view_id in list(self._views):
            self._remove(view_id)
        self._first = max(0, first)
        for place in range(self._first, min(end, len(self._records))):
            self._insert(place)
        self._settle(self._views.values())
        self._tend_soon()

    def _tend_soon(self, milliseconds: int = 0) -> None:
        if not self._later.isActive():
            self._later.start(milliseconds)

    def _tend(self) -> None:
        """Make a view around the visible ones, which stay in place, and remove a distant one."""
        if not self._views or not self.isVisible():
            return
        bar, screen = self.verticalScrollBar(), max(1, self.viewport().height())
        above, below = bar.value(), bar.maximum() - bar.value()
        if self._is_new and bar.maximum() > 0:
            self._is_new = False
            self._later.start(_REST_MS)
            return
        views = list(self._views.values())
        changes: list[Callable[[], object]] = []
        if above < _AHEAD * screen and self._first:
            changes.append(lambda: self._insert(self._first - 1))
        elif below < _AHEAD * screen and not self._has_end:
            changes.append(lambda: self._insert(self._end))
        if above - views[0].height() > _KEPT * screen and _may_go(views[0]):
            changes.append(lambda: self._remove(views[0].record.id))
        elif below - views[-1].height() > _KEPT * screen and _may_go(views[-1]):
            changes.append(lambda: self._remove(views[-1].record.id))
        if not changes:
            return
        self._change(changes, views)
        self._tend_soon(_TEND_MS)

    def _change(
        self, changes: Iterable[Callable[[], object]], views: Sequence[MessageView]
    ) -> None:
        """Change the views; the top of the screen stays in place."""
        bar = self.verticalScrollBar()
        held = self.first_in_view or views[-1]
        place = self.top_of(held) - bar.value()
        self.is_moving = True
        for change in changes:
            change()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        bar.setValue(bar.maximum() if self.follows else self.top_of(held) - place)
        self.is_moving = False

    def _insert(self, place: int) -> None:
        record = self._records[place]
        kind = UserMessageView if record.is_user else AssistantMessageView
        view = kind(record, self.requests)
        is_before = place < self._first
        self._first = min(self._first, place)
        self._views[record.id] = view
        self._mark_inspected(view)
        self._column.insertWidget(place - self._first, view)
        view.show()  # the layout would show it later, and give it no room until then
        if is_before:
            self._sort_views()

    def _sort_views(self) -> None:
        places = self._records.places
        self._views = dict(sorted(self._views.items(), key=lambda one: places[one[0]]))

    def _remove(self, message_id: str) -> None:
        view = self._views.pop(message_id)
        if self._views and self._records.places[message_id] == self._first:
            self._first += 1
        self._column.removeWidget(view)
        focused = QApplication.focusWidget()
        if focused is not None and view.isAncestorOf(focused):
            self.setFocus(Qt.FocusReason.OtherFocusReason)  # not what Qt takes for the next
        view.hide()
        view.deleteLater()


def _may_go(view: MessageView) -> bool:
    """Whether a view can be removed without losing state."""
    focused = QApplication.focusWidget()
    is_used = focused is not None and view.isAncestorOf(focused)
    is_edited = isinstance(view, UserMessageView) and view.is_editing
    is_marked = view.text.textCursor().hasSelection()
    return not (view.record.is_open or is_used or is_edited or is_marked)
