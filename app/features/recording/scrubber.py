"""`MarkStrip`: marks of a recording above the slider of its play bar."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QHelpEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.features.recording.marks import EventMark, MarkOf
from widgets.theme.theme import theme, theme_notifier

HEIGHT, HANDLE = 14, 14  # pixels; the slider's handle with its border
_NEAR = 4  # pixels from a mark that point at it
_MOST_TOLD = 6
_COLORS = {
    MarkOf.REQUEST: "text_muted", MarkOf.SETTING: "accent", MarkOf.MODEL: "warning",
    MarkOf.CRASH: "danger",
}  # fmt: skip
_ORDER = (MarkOf.REQUEST, MarkOf.SETTING, MarkOf.MODEL, MarkOf.CRASH)


class MarkStrip(QWidget):
    """Requests are short lines, settings, models and crashes long ones with a head. A click jumps:
    `chosen(seconds of playback)`."""

    chosen = Signal(float)

    def __init__(self, marks: Sequence[EventMark], duration: float) -> None:
        super().__init__()
        self._marks, self._duration = tuple(marks), max(duration, 1e-6)
        self.setAccessibleName("Marks")
        counts = [f"{sum(m.of is of for m in marks)} {of}" for of in _ORDER]
        self.setAccessibleDescription(", ".join(counts))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMouseTracking(True)
        theme_notifier().changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def x_of(self, at: float) -> float:
        """The middle of the slider's handle at a time."""
        return HANDLE / 2 + at / self._duration * (self.width() - HANDLE)

    def near(self, x: float) -> list[EventMark]:
        """The marks at a place; where there are several, the closest ones first."""
        found = [mark for mark in self._marks if abs(self.x_of(mark.at) - x) <= _NEAR]
        return sorted(found, key=lambda mark: (abs(self.x_of(mark.at) - x), -_ORDER.index(mark.of)))

    # Painting and mouse ------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, table = QPainter(self), theme()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for of in _ORDER:
            color = table.color(_COLORS[of])
            painter.setPen(QPen(color, 1 if of is MarkOf.REQUEST else 2))
            painter.setBrush(color)
            for mark in self._marks:
                if mark.of is of:
                    x = round(self.x_of(mark.at)) + 0.5
                    top = HEIGHT / 2 if of is MarkOf.REQUEST else 3
                    painter.drawLine(QPointF(x, top), QPointF(x, HEIGHT))
                    if of is not MarkOf.REQUEST:
                        painter.drawEllipse(QPointF(x, 3), 2, 2)
        painter.end()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        is_near = bool(self.near(event.position().x()))
        shapes = Qt.CursorShape
        self.setCursor(shapes.PointingHandCursor if is_near else shapes.ArrowCursor)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        found = self.near(event.position().x())
        if found and event.button() == Qt.MouseButton.LeftButton:
            self.chosen.emit(found[0].at)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            found = sorted(self.near(event.pos().x()), key=lambda mark: mark.at)
            lines = [mark.text for mark in found[:_MOST_TOLD]]
            if len(found) > _MOST_TOLD:
                lines.append(f"{len(found) - _MOST_TOLD:,} more")
            QToolTip.showText(event.globalPos(), "\n".join(lines), self)
            return True
        return super().event(event)
