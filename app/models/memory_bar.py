"""Memory needed against memory free, as one bar with its figures."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.models.estimate import Need
from app.units import format_bytes
from widgets.theme import SPACE_1, SPACE_2, SPACE_4, figure_font, theme, theme_notifier

BAR_HEIGHT = 16
PARTS = (
    ("Weights", "weights", lambda need: need.weights),
    ("KV cache of one request", "kv_used", lambda need: need.kv_cache),
    ("Activations", "other", lambda need: need.activations),
)


class MemoryBar(QWidget):
    """The parts of what a model needs side by side; a line where what may be used ends."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._need: Need | None = None
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def show_need(self, need: Need | None) -> None:
        self._need = need
        self.setAccessibleName(self.text())
        self.update()

    def text(self) -> str:
        """The bar in words."""
        if self._need is None:
            return ""
        parts = [f"{label} {format_bytes(size(self._need))}" for label, _, size in PARTS]
        need = self._need
        return (
            f"{', '.join(parts)}: {format_bytes(need.needed)} needed, "
            f"{format_bytes(need.limit)} may be used of {format_bytes(need.free)} free."
        )

    def sizeHint(self) -> QSize:
        line = self.fontMetrics().height()
        return QSize(360, line + SPACE_1 + BAR_HEIGHT + SPACE_2 + 3 * (line + 2))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._need is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        line = self.fontMetrics().height()
        self._paint_bar(painter, self._need, line + SPACE_1)
        self._paint_legend(painter, self._need, line + SPACE_1 + BAR_HEIGHT + SPACE_2)

    def _paint_bar(self, painter: QPainter, need: Need, top: float) -> None:
        colors = theme()
        scale = self.width() / (max(need.needed, need.limit) * 1.02)
        full = QRectF(0, top, self.width(), BAR_HEIGHT)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colors.color("pressed"))
        painter.drawRect(full)
        left = 0.0
        for _, color, size in PARTS:
            width = size(need) * scale
            painter.setBrush(colors.color(color))
            painter.drawRect(QRectF(left, top, max(width, 1.0), BAR_HEIGHT))
            left += max(width, 1.0)
        limit = need.limit * scale
        painter.setPen(QPen(colors.color("text" if need.fits else "danger"), 1.5))
        painter.drawLine(int(limit), int(top - SPACE_1), int(limit), int(top + BAR_HEIGHT + 2))
        painter.setPen(colors.color("text_muted"))
        words = f"may be used {format_bytes(need.limit)}"
        width = self.fontMetrics().horizontalAdvance(words)
        at = min(max(0.0, limit - width - SPACE_1), self.width() - width)
        painter.drawText(QRectF(at, 0, width, top - SPACE_1), Qt.AlignmentFlag.AlignLeft, words)

    def _paint_legend(self, painter: QPainter, need: Need, top: float) -> None:
        line = self.fontMetrics().height() + 2
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        for row, (label, color, size) in enumerate(PARTS):
            y = top + row * line
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().color(color))
            painter.drawRect(QRectF(0, y + (line - 8) / 2, 8, 8))
            painter.setPen(theme().color("text_muted"))
            painter.drawText(QRectF(SPACE_4, y, self.width(), line), left, label)
            painter.setPen(theme().color("text"))
            value = QRectF(0, y, self.width(), line)
            painter.drawText(value, right, _in_unit_of(need, size(need)))


def _in_unit_of(need: Need, num_bytes: int) -> str:
    """A size in the unit of the whole, so that the column can be compared at a glance."""
    if need.needed >= 2**30:
        return f"{num_bytes / 2**30:.2f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB"
