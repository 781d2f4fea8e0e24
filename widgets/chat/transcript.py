"""The messages of a conversation in a scroll area that follows the end.

Views are made for the newest messages first, and for older ones when the user scrolls up to them,
so a conversation of hundreds of messages opens as fast as one of twenty.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QEvent, QRect, Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QScrollArea, QVBoxLayout, QWidget

from widgets.chat.message_view import AssistantMessageView, MessageView, UserMessageView
from widgets.chat.records import MessageRecord
from widgets.icons import set_icon
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4

COLUMN_WIDTH = 820
"""Longer lines of text are hard to follow."""
SIDE_MARGIN = SPACE_4
BATCH = 20
"""Views that are made at once."""
_NEAR = 24  # pixels from the end that count as the end


class Transcript(QScrollArea):
    copy_requested = Signal(str)
    edit_requested = Signal(str, str)
    regenerate_requested = Signal(str)
    version_requested = Signal(str, int)
    link_activated = Signal(str)
    latency_requested = Signal(str)
    tokens_requested = Signal(str)
    branches_requested = Signal(str)
    file_opened = Signal(object, QWidget)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Conversation")
        content = QWidget()
        content.setProperty("bare", True)
        row = QHBoxLayout(content)
        row.setContentsMargins(SIDE_MARGIN, SPACE_2, SIDE_MARGIN, SPACE_4)
        row.addStretch(1)
        self._column_widget = QWidget()
        self._column_widget.setMaximumWidth(COLUMN_WIDTH)
        row.addWidget(self._column_widget, 1000)
        row.addStretch(1)
        self._column = QVBoxLayout(self._column_widget)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(SPACE_3)
        self._column.addStretch(1)
        self.setWidget(content)
        self._margins = row
        self._records: list[MessageRecord] = []
        self._views: dict[str, MessageView] = {}  # in order, of the last records
        self._follows = True
        self._from_end = 0  # kept while older messages are put in above
        self._jump = JumpButton(self)
        self._jump.clicked.connect(self.jump_to_end)
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(self._range_changed)
        bar.valueChanged.connect(self._value_changed)

    # Content ---------------------------------------------------------------------------------

    def set_messages(self, records: Sequence[MessageRecord]) -> None:
        """Show `records`. Views of messages that stay are kept, and with them what is selected."""
        wanted = {record.id for record in records}
        is_same = bool(self._records) and bool(records) and self._records[0].id == records[0].id
        shown = [record for record in records if record.id in self._views] if is_same else []
        for view_id in list(self._views):
            if not shown or view_id not in wanted:
                self._remove(view_id)
        self._records = list(records)
        first = records.index(shown[0]) if shown else max(0, len(records) - BATCH)
        for position, record in enumerate(records[first:]):
            view = self._views.get(record.id)
            if view is None:
                self._insert(position, record)
            else:
                view.show_record(record)
        self._views = {record.id: self._views[record.id] for record in records[first:]}
        if not shown:
            self.jump_to_end()

    def update_message(self, record: MessageRecord) -> None:
        """Show a changed state of one message; its text is extended by `append_text` alone."""
        for position, known in enumerate(self._records):
            if known.id == record.id:
                self._records[position] = record
        if (view := self._views.get(record.id)) is not None:
            view.show_record(record)

    def append_text(self, message_id: str, text: str) -> None:
        """Extend a reply. Its first text is on the screen when this returns."""
        view = self._views.get(message_id)
        if isinstance(view, AssistantMessageView):
            is_first = not view.record.text
            view.append(text)
            if is_first:
                self.paint_now(view)

    def paint_now(self, view: QWidget) -> None:
        """Lay out and paint what has changed, without waiting for the event loop."""
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        if self._follows:
            self.jump_to_end()
        view.repaint()

    def view(self, message_id: str) -> MessageView | None:
        return self._views.get(message_id)

    @property
    def views(self) -> list[MessageView]:
        """The views that were made, from top to bottom."""
        return list(self._views.values())

    def unmark(self) -> None:
        """Take back what `reveal` marked."""
        for view in self._views.values():
            view.mark(())

    def reveal(self, message_id: str, words: Sequence[str] = ()) -> None:
        """Scroll to a message, making views up to it; to the first of `words` where it has them,
        which are marked."""
        if not any(record.id == message_id for record in self._records):
            return
        while message_id not in self._views:
            self._build_older()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        view = self._views[message_id]
        self.unmark()
        place = view.mark(words)
        top = view.y() + self._column_widget.y()
        if place is not None and place.bottom() > self.viewport().height() - SPACE_4:
            top += place.top() - self.viewport().height() // 2
        self.verticalScrollBar().setValue(top - SPACE_4)

    def edit_message(self, message_id: str) -> None:
        view = self._views.get(message_id)
        if isinstance(view, UserMessageView):
            view.begin_edit()
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
            self.ensureWidgetVisible(view, 0, SPACE_4)

    # Scrolling -------------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        """Whether new text scrolls into view."""
        return self._follows

    def jump_to_end(self) -> None:
        self._follows = True
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())
        self._jump.hide()

    def _range_changed(self, low: int, high: int) -> None:
        bar = self.verticalScrollBar()
        # the column stays where it is when the bar takes its place at the right
        taken = bar.sizeHint().width() if high > 0 else 0
        self._margins.setContentsMargins(SIDE_MARGIN, SPACE_2, SIDE_MARGIN - taken, SPACE_4)
        if self._follows:
            bar.setValue(high)
        elif self._from_end:
            bar.setValue(high - self._from_end)
        self._show_jump()

    def _value_changed(self, value: int) -> None:
        bar = self.verticalScrollBar()
        self._follows = value >= bar.maximum() - _NEAR
        self._show_jump()
        if value < self.viewport().height() and len(self._views) < len(self._records):
            self._build_older()

    def _show_jump(self) -> None:
        bar = self.verticalScrollBar()
        self._jump.setVisible(not self._follows and bar.maximum() > 0)
        self._jump.place(self.viewport().geometry())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_jump()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        bar = self.verticalScrollBar()
        if event.key() == Qt.Key.Key_Home:
            bar.setValue(0)
        elif event.key() == Qt.Key.Key_End:
            self.jump_to_end()
        else:
            super().keyPressEvent(event)

    # Views -----------------------------------------------------------------------------------

    def _build_older(self) -> None:
        """Make the views of the messages before the first one that has a view."""
        built = len(self._records) - len(self._views)
        first = max(0, built - BATCH)
        bar = self.verticalScrollBar()
        self._from_end = bar.maximum() - bar.value()
        views = self._views
        for position, record in enumerate(self._records[first:built]):
            self._insert(position, record)
        order = [record.id for record in self._records[first:]]
        self._views = {message_id: views[message_id] for message_id in order}
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        self._from_end = 0

    def _insert(self, position: int, record: MessageRecord) -> None:
        view = UserMessageView(record) if record.is_user else AssistantMessageView(record)
        view.copy_requested.connect(self.copy_requested)
        view.edit_requested.connect(self.edit_requested)
        view.regenerate_requested.connect(self.regenerate_requested)
        view.version_requested.connect(self.version_requested)
        view.latency_requested.connect(self.latency_requested)
        view.tokens_requested.connect(self.tokens_requested)
        view.branches_requested.connect(self.branches_requested)
        view.file_opened.connect(self.file_opened)
        view.link_activated.connect(self.link_activated)
        self._views[record.id] = view
        self._column.insertWidget(position, view)

    def _remove(self, message_id: str) -> None:
        view = self._views.pop(message_id)
        self._column.removeWidget(view)
        view.hide()
        view.deleteLater()


class JumpButton(QPushButton):
    """Floats above the end of the transcript while the user reads further up."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__("Newest", parent)
        self.setToolTip("Jump to the newest text (End)")
        self.setAccessibleName("Jump to the newest text")
        set_icon(self, "chevron-down")
        self.hide()

    def place(self, area: QRect) -> None:
        """At the lower right of `area`."""
        size = self.sizeHint()
        x = area.right() - size.width() - SPACE_4
        self.setGeometry(x, area.bottom() - size.height() - SPACE_1, size.width(), size.height())
