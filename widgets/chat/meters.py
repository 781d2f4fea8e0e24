"""`ContextLine`: how much of the context is used, in as many words as there is room for."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from widgets.theme.theme import figure_font, theme, theme_notifier


class ContextLine(QLabel):
    """A line, or the short one, or nothing where there is no room: half a number misleads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = ("", "")
        self.setProperty("role", "small")
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def say(self, text: str, short: str) -> None:
        self.lines = (text, short)
        self.setToolTip(text)
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        advance = self.fontMetrics().horizontalAdvance
        self.setText(next((line for line in self.lines if advance(line) <= self.width()), ""))


_WIDTH, _HEIGHT = 64, 6
_NEARLY = 0.9


class ContextMeter(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._used = self._draft = self._limit = 0
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Context")
        theme_notifier().changed.connect(self.update)
        self.hide()

    def show_use(self, used: int, draft: int, limit: int) -> None:
        """Tokens; hidden where the limit is not known (0)."""
        if (used, draft, limit) != (self._used, self._draft, self._limit):
            self._used, self._draft, self._limit = used, draft, limit
            words = f"{used:,} of {limit:,} tokens used, about {draft:,} more are being written"
            self.setAccessibleDescription(words)
            self.setToolTip(words)
            self.update()
        self.setVisible(limit > 0)

    def sizeHint(self) -> QSize:
        return QSize(_WIDTH, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        table, painter = theme(), QPainter(self)
        area = QRectF(self.rect())
        painter.fillRect(area, table.color("pressed"))
        if self._limit:
            scale = area.width() / self._limit
            used = min(area.width(), self._used * scale)
            draft = min(area.width() - used, self._draft * scale)
            is_nearly_full = self._used + self._draft > _NEARLY * self._limit
            painter.fillRect(
                QRectF(0, 0, used, area.height()),
                table.color("warning" if is_nearly_full else "kv_used"),
            )
            painter.fillRect(
                QRectF(used, 0, draft, area.height()),
                table.color("danger" if is_nearly_full else "kv_cached"),
            )
        painter.end()


BETWEEN = "    "
_LEAST_WIDTH = 60


class FiguresLine(QLabel):
    """As many groups as there is room for, from the left; the first is cut where it alone is too
    long. It can be selected and copied."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""
        self.setProperty("role", "small")
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setMinimumWidth(_LEAST_WIDTH)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)

    def show_line(self, line: str) -> None:
        """`line`: the groups, BETWEEN them."""
        if line != self._line:
            self._line = line
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def _fit(self) -> None:
        parts, metrics = self._line.split(BETWEEN), QFontMetrics(self.font())
        width = max(self.width(), _LEAST_WIDTH)
        while len(parts) > 1 and metrics.horizontalAdvance(BETWEEN.join(parts)) > width:
            parts.pop()
        text = metrics.elidedText(BETWEEN.join(parts), Qt.TextElideMode.ElideRight, width)
        if text != self.text():
            self.setText(text)
