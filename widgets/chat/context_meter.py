"""`ContextMeter`: how full the context is, as a bar: used, what is being written, free."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.theme import theme, theme_notifier

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
