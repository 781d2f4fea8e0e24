"""`MessageText`: the text of one message at its full height, selectable across its blocks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QMimeData, QPointF, QRect, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCharFormat,
    QTextCursor,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QTextEdit, QWidget

from widgets.chat.document import Group, MarkdownDocument
from widgets.chat.formats import CODE_HEADER, CODE_PADDING
from widgets.chat.markdown import Line, Span, StreamingMarkdown
from widgets.controls.buttons import CopyButton
from widgets.controls.layouts import hbox, label
from widgets.theme.theme import RADIUS, SPACE_1, SPACE_3, theme, theme_notifier

_COST_SHARE = 8
"""Rendering takes at most an eighth of the time."""
_CARET_WIDTH = 3
_MOST_MARKS = 500


class MessageText(QTextBrowser):
    """Markdown, or plain text, in the width that it is given; `height_changed` when it grows.

    `append` may be called for every piece: the last block alone is rendered again, at once while
    that is cheap, else a little later.
    """

    link_activated = Signal(str)
    height_changed = Signal()
    pressed = Signal()

    def __init__(self) -> None:
        super().__init__(openLinks=False)
        self.setProperty("bare", True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.anchorClicked.connect(lambda url: self.link_activated.emit(url.toString()))
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextBrowserInteraction
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setTabChangesFocus(True)
        self._written = MarkdownDocument(self.document())
        self._stream = StreamingMarkdown()
        self._headers: list[CodeHeader] = []
        self._headers_width = -1
        self._has_caret = False
        self._cost = self._rendered_at = 0.0
        self._pending = ""
        self._words: tuple[str, ...] = ()  # marked
        self._later = QTimer(self, singleShot=True)
        self._later.timeout.connect(self.render_now)
        self.setFixedHeight(self.fontMetrics().height())
        theme_notifier().changed.connect(self._theme_changed)

    # Content ---------------------------------------------------------------------------------

    def set_markdown(self, source: str) -> None:
        self._stream, self._pending = StreamingMarkdown(), ""
        self._later.stop()
        self._stream.append(source)
        self._written.set_items(self._stream.items_from(0))
        self._arrange()

    def set_plain(self, text: str) -> None:
        lines = text.split("\n")
        self._written.set_items([Line("plain", (Span(line),) if line else ()) for line in lines])
        self._arrange()

    def append(self, text: str) -> None:
        self._pending += text
        wait = self._rendered_at + _COST_SHARE * self._cost - time.perf_counter()
        if wait <= 0:
            self.render_now()
        elif not self._later.isActive():
            self._later.start(max(1, int(wait * 1000)))

    def render_now(self) -> None:
        if not self._pending:
            return
        started = time.perf_counter()
        text, self._pending = self._pending, ""
        settled = self._stream.num_settled
        self._stream.append(text)
        self._written.set_items(self._stream.items_from(settled), settled)
        self._arrange(settled)
        self._rendered_at = time.perf_counter()
        self._cost = self._rendered_at - started

    def set_caret(self, has_caret: bool) -> None:
        """Show a caret after the last character during streaming."""
        if has_caret != self._has_caret:
            self._has_caret = has_caret
            self.viewport().update()

    def mark(self, words: Sequence[str]) -> QRect | None:
        """Mark `words`, ignoring case, in place of previous marks; the rectangle of the first, or
        None."""
        self.render_now()
        self._words = tuple(words)
        look = QTextCharFormat()
        look.setBackground(theme().color("selection"))
        look.setForeground(theme().color("selection_text"))
        found: list[QTextEdit.ExtraSelection] = []
        for word in words:
            cursor = self.document().find(word)
            while not cursor.isNull() and len(found) < _MOST_MARKS:
                selection = QTextEdit.ExtraSelection()
                selection.cursor, selection.format = cursor, look
                found.append(selection)
                cursor = self.document().find(word, cursor)
        self.setExtraSelections(found)
        starts = [s.cursor.selectionStart() for s in found]
        if not starts:
            return None
        cursor = QTextCursor(self.document())
        cursor.setPosition(min(starts))
        return self.cursorRect(cursor)

    def ideal_width(self, limit: int) -> int:
        """Preferred width of the text, at most `limit`."""
        self.document().setTextWidth(limit)
        return min(limit, int(self.document().idealWidth()) + 1)

    # Geometry --------------------------------------------------------------------------------

    def sizeHint(self) -> QSize:
        return QSize(400, self.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(80, 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._arrange()

    def _arrange(self, num_same: int = 0) -> None:
        """Fit the height to the text and place the headers above their code. The first `num_same`
        items have not moved."""
        width = self.viewport().width()
        if self.document().textWidth() != width:
            self.document().setTextWidth(width)
        items = self._written.items
        padding = CODE_PADDING if items and getattr(items[-1], "kind", "") == "code" else 0
        height = max(int(self.document().size().height() + 0.999) + padding, self._line_height())
        if height != self.height():
            self.setFixedHeight(height)
            self.height_changed.emit()
            self.viewport().update()
        else:  # Qt repaints the text, but not the panels and the caret at the end
            top = max(0, height - 4 * self._line_height())
            self.viewport().update(0, top, width, height - top)
        self._place_headers(width, num_same)

    def _line_height(self) -> int:
        return self.fontMetrics().height()

    def _place_headers(self, width: int, num_same: int) -> None:
        groups = [group for group in self._written.groups if group.kind == "code"]
        while len(self._headers) > len(groups):
            header = self._headers.pop()
            header.hide()
            header.deleteLater()
        # a long reply has hundreds: those above what is written now stay as they are
        kept = bisect_left(groups, num_same - 1, key=lambda group: group.last)
        first = min(kept, len(self._headers)) if width == self._headers_width else 0
        self._headers_width = width
        while len(self._headers) < len(groups):
            self._headers.append(CodeHeader(self.viewport()))
        for header, group in zip(self._headers[first:], groups[first:], strict=True):
            panel = self._panel(group)
            header.language.setText(group.label or "text")
            header.code = partial(self._written.text_of, group)
            header.setGeometry(int(panel.left()), int(panel.top()), int(panel.width()), CODE_HEADER)
            header.show()

    def _panel(self, group: Group) -> QRectF:
        lines = self._written.rect(group)
        left = self._written.left_of(group)
        width = self.viewport().width() - left
        top = lines.top() - CODE_HEADER - SPACE_1
        return QRectF(left, top, width, lines.bottom() + CODE_PADDING - top)

    # Painting --------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        exposed = QRectF(event.rect())
        for group in self._groups_down_to(exposed.top()):
            self._paint_group(painter, group, exposed)
        painter.end()
        super().paintEvent(event)
        if self._has_caret:
            painter = QPainter(self.viewport())
            painter.fillRect(self._caret_rect(), theme().color("text"))
            painter.end()

    def _groups_down_to(self, top: float) -> list[Group]:
        """Indices of the groups that end below `top`. They are sorted by their ends, and usually
        the end of a long reply is painted."""
        found: list[Group] = []
        for group in reversed(self._written.groups):
            if self._written.rect(group).bottom() + CODE_PADDING < top:
                break
            found.append(group)
        return found[::-1]

    def _paint_group(self, painter: QPainter, group: Group, exposed: QRectF) -> None:
        colors = theme()
        if group.kind == "code":
            panel = self._panel(group)
            if panel.intersects(exposed):
                painter.setPen(QPen(colors.color("border"), 1))
                painter.setBrush(colors.color("code_background"))
                frame = panel.adjusted(0.5, 0.5, -0.5, -0.5)
                painter.drawRoundedRect(frame, RADIUS - 2, RADIUS - 2)
                line_y = panel.top() + CODE_HEADER - 0.5
                painter.drawLine(QPointF(frame.left(), line_y), QPointF(frame.right(), line_y))
            return
        lines = self._written.rect(group)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colors.color("border"))
        if group.kind == "mark":
            left = self._written.right_of_text(group) + SPACE_1 * 2
            middle = round(lines.center().y())
            painter.setBrush(colors.color("accent"))
            painter.drawRect(QRectF(left, middle, self.viewport().width() - left, 1))
        elif group.kind == "quote":
            painter.setBrush(colors.color("border_strong"))
            painter.drawRoundedRect(QRectF(0, lines.top(), 3, lines.height()), 1.5, 1.5)
        else:
            left = self._written.left_of(group)
            painter.drawRect(QRectF(left, lines.top(), self.viewport().width() - left, 1))

    def _caret_rect(self) -> QRectF:
        block = self.document().lastBlock()
        height = float(self._line_height()) - 2
        layout = block.layout()
        if not self._written.items or layout.lineCount() == 0:
            return QRectF(0, 1, _CARET_WIDTH, height)
        line = layout.lineAt(layout.lineCount() - 1)
        x = line.cursorToX(block.length() - 1)
        x = float(x[0]) if isinstance(x, tuple) else float(str(x))
        corner = layout.position() + line.position()
        x = min(round(layout.position().x() + x) + 1, self.viewport().width() - _CARET_WIDTH)
        return QRectF(x, corner.y() + 1, _CARET_WIDTH, min(height, line.ascent() + line.descent()))

    def _theme_changed(self) -> None:
        selected = self.textCursor()
        start, end = selected.anchor(), selected.position()
        self._written.rewrite()
        if start != end:
            selected.setPosition(start)
            selected.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
            self.setTextCursor(selected)
        if self._words:
            self.mark(self._words)
        self._arrange()

    # Input -----------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        self.pressed.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the transcript scrolls

    def keyPressEvent(self, event: QKeyEvent) -> None:
        paging = (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown, Qt.Key.Key_Escape)
        plain_ends = (Qt.Key.Key_Home, Qt.Key.Key_End)
        if event.key() in paging or (
            event.key() in plain_ends and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        ):
            event.ignore()
        else:
            super().keyPressEvent(event)

    def createMimeDataFromSelection(self) -> QMimeData:
        """Plain text only: theme colours do not belong in other documents. It must be Qt's own
        object: the clipboard destroys its content after the interpreter has ended, and an object
        created by Python caused a segmentation fault."""
        data = super().createMimeDataFromSelection()
        data.text()  # the formats are worked out when the first is asked for, and would come back
        data.clear()
        data.setText(self.textCursor().selection().toPlainText())
        return data


class CodeHeader(QWidget):
    """The strip above a code block: its language, and a button that copies `code()`."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.code: Callable[[], str] = str
        self.language = label(role="small")
        self._copy = CopyButton("Copy code", lambda: self.code())
        hbox((self.language, 1), self._copy, of=self, spacing=-1, margins=(SPACE_3, 0, SPACE_1, 0))
        self.setCursor(Qt.CursorShape.ArrowCursor)
