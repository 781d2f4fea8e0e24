"""What fits at which precision: a bar each of weights, KV cache and activations, to one scale,
with a line where what may be used ends.

    float32     2.61 GiB needed · fits, up to 16,384 tokens
    #############++===..........|

Of a model that is divided, what is in RAM stands paler behind what is on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.models.fit import Fit
from app.models.memory_bar import PARTS
from app.units import format_bytes
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, theme, theme_notifier, ui_font

BAR = 8
PALE = 0.4


class FitRows(QWidget):
    """Rows of `Fit`; takes no room without any."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._fits: list[tuple[str, Fit]] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)
        self.hide()

    def show_fits(self, fits: Sequence[Fit]) -> None:
        """One row per precision."""
        self.show_named([(fit.precisions, fit) for fit in fits])

    def show_named(self, fits: Sequence[tuple[str, Fit]]) -> None:
        """Rows with names of their own, such as those of models."""
        self._fits = list(fits)
        self.setAccessibleName(self.text())
        self.setToolTip(self._explanation())
        self.setVisible(bool(fits))
        self.updateGeometry()
        self.update()

    def text(self) -> str:
        """The rows in words."""
        return "\n".join(f"{name}: {_figures(fit)}" for name, fit in self._fits)

    def sizeHint(self) -> QSize:
        return QSize(360, self._row_height() * len(self._fits))

    def minimumSizeHint(self) -> QSize:
        return QSize(200, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._fits:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        most = max(max(fit.need.everywhere for _, fit in self._fits), self._limit)
        scale = self.width() / (most * 1.02)
        for row, (name, fit) in enumerate(self._fits):
            top = row * self._row_height()
            self._paint_words(painter, name, fit, top)
            self._paint_bar(painter, fit, top + self._line_height() + 2, scale)
        painter.end()

    @property
    def _limit(self) -> int:
        return self._fits[0][1].need.limit

    def _line_height(self) -> int:
        return self.fontMetrics().height()

    def _row_height(self) -> int:
        return self._line_height() + 2 + BAR + SPACE_3

    def _paint_words(self, painter: QPainter, name: str, fit: Fit, top: int) -> None:
        colors = theme()
        line = QRectF(0, top, self.width(), self._line_height())
        middle = Qt.AlignmentFlag.AlignVCenter
        painter.setFont(figure_font("small"))
        figures = _figures(fit)
        width = painter.fontMetrics().horizontalAdvance(figures)
        painter.setPen(colors.color("text_muted" if fit.need.fits else "danger"))
        painter.drawText(line, Qt.AlignmentFlag.AlignRight | middle, figures)
        painter.setFont(ui_font())
        painter.setPen(colors.color("text"))
        room = max(0, self.width() - width - SPACE_2)
        short = painter.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(line, Qt.AlignmentFlag.AlignLeft | middle, short)

    def _paint_bar(self, painter: QPainter, fit: Fit, top: float, scale: float) -> None:
        colors = theme()
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colors.color("pressed"))
        painter.drawRect(QRectF(0, top, self.width(), BAR))
        left = 0.0
        for part in filter(None, (fit.need, fit.need.in_ram)):
            painter.setOpacity(1.0 if part is fit.need else PALE)
            for _, color, size in PARTS:
                width = max(size(part) * scale, 1.0)
                painter.setBrush(colors.color(color))
                painter.drawRect(QRectF(left, top, width, BAR))
                left += width
        painter.setOpacity(1.0)
        limit = self._limit * scale
        painter.setPen(QPen(colors.color("text" if fit.need.fits else "danger"), 1.5))
        painter.drawLine(QPointF(limit, top - SPACE_1 / 2), QPointF(limit, top + BAR + 2))

    def _explanation(self) -> str:
        if not self._fits:
            return ""
        parts = ", ".join(label.lower() for label, _, _ in PARTS)
        need = self._fits[0][1].need
        words = (
            f"From the left: {parts}. The line is what may be used: {format_bytes(need.limit)} "
            f"of {format_bytes(need.free)} free{f' {need.where}' if need.where else ''}, at "
            f"{need.max_model_len:,} tokens of context."
        )
        if not any(fit.need.in_ram for _, fit in self._fits):
            return words
        return f"{words} Paler, behind them: what is in RAM, of layers that the CPU computes."


def _figures(fit: Fit) -> str:
    size = f"{format_bytes(fit.need.everywhere)} {fit.need.where}".rstrip()
    return f"{size} · {fit.text}"
