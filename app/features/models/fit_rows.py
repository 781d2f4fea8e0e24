"""Memory bars: needed against usable. With CPU offload one bar for the GPU and one for RAM.

    cuda:0                         usable 21.4 GiB
    ##################################+++====  |
    RAM                            usable 50.2 GiB
    ###########++=                             |
                                cuda:0       RAM
    # Weights                17.90 GiB  6.10 GiB
    + KV cache (1 request)    1.90 GiB  0.70 GiB
    = Activations             0.60 GiB  0.30 GiB
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.features.models.estimate import InRam, Need
from app.features.models.fit import Fit
from engine.units import bytes_text
from widgets.theme.theme import (
    SPACE_1,
    SPACE_2,
    SPACE_3,
    SPACE_4,
    figure_font,
    theme,
    theme_notifier,
    ui_font,
)

BAR_HEIGHT = 16
PARTS = (
    ("Weights", "weights", lambda need: need.weights),
    ("KV cache (1 request)", "kv_used", lambda need: need.kv_cache),
    ("Activations", "other", lambda need: need.activations),
)
IN_RAM = "RAM"


class MemoryBar(QWidget):
    """Weights, KV cache and activations as one bar, with a line at the usable memory."""

    def __init__(self) -> None:
        super().__init__()
        self._need: Need | None = None
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)

    def show_need(self, need: Need | None) -> None:
        self._need = need
        self.setAccessibleName(self.text())
        self.updateGeometry()
        self.update()

    def text(self) -> str:
        """The figures of the bar."""
        need = self._need
        if need is None:
            return ""
        needed, usable, free = map(bytes_text, (need.needed, need.limit, need.free))
        words = f"{_parts_text(need)}; {needed} needed, {usable} usable of {free} free."
        if (ram := need.in_ram) is None:
            return words
        return (
            f"On {need.device}: {words} In RAM: {_parts_text(ram)}; "
            f"{bytes_text(ram.needed)} needed, {bytes_text(ram.limit)} usable."
        )

    def sizeHint(self) -> QSize:
        line = self.fontMetrics().height()
        is_offloaded = self._need is not None and self._need.in_ram is not None
        rows = (len(PARTS) + is_offloaded) * (line + 2)
        return QSize(360, (1 + is_offloaded) * self._bar_height() + rows)

    def _bar_height(self) -> int:
        """With the labels above it."""
        return self.fontMetrics().height() + SPACE_1 + BAR_HEIGHT + SPACE_2

    def paintEvent(self, event: QPaintEvent) -> None:
        need = self._need
        if need is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        name = need.device if need.in_ram is not None else ""
        self._paint_bar(painter, need, 0, name)
        if need.in_ram is not None:
            self._paint_bar(painter, need.in_ram, self._bar_height(), IN_RAM)
        self._paint_legend(painter, need)
        painter.end()

    def _paint_bar(self, painter: QPainter, part: Need | InRam, above: int, name: str) -> None:
        """Labels at `above`, the bar below them."""
        colors, line = theme(), self.fontMetrics().height()
        scale = self.width() / (max(part.needed, part.limit, 1) * 1.02)
        bar = QRectF(0, above + line + SPACE_1, self.width(), BAR_HEIGHT)
        _paint_parts(painter, bar, [part], scale, part.limit, part.needed <= part.limit)
        painter.setPen(colors.color("text_muted"))
        words = f"{bytes_text(part.limit)} usable"
        width = self.fontMetrics().horizontalAdvance(words)
        named = self.fontMetrics().horizontalAdvance(f"{name}  ") if name else 0
        at = min(max(named, part.limit * scale - width - SPACE_1), self.width() - width)
        painter.drawText(QRectF(at, above, width, line), Qt.AlignmentFlag.AlignLeft, words)
        painter.setPen(colors.color("text"))
        painter.drawText(QRectF(0, above, named, line), Qt.AlignmentFlag.AlignLeft, name)

    def _paint_legend(self, painter: QPainter, need: Need) -> None:
        line, ram = self.fontMetrics().height() + 2, need.in_ram
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        top, end = self._bar_height(), float(self.width())
        column = self.fontMetrics().horizontalAdvance("000.00 GiB") + SPACE_4
        if ram is not None:
            top, end = 2 * self._bar_height(), end - column
            painter.setPen(theme().color("text_muted"))
            painter.drawText(QRectF(0, top, end, line), right, need.device)
            painter.drawText(QRectF(end, top, column, line), right, IN_RAM)
            top += line
        for row, (label, color, size) in enumerate(PARTS):
            y = top + row * line
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().color(color))
            painter.drawRect(QRectF(0, y + (line - 8) / 2, 8, 8))
            painter.setPen(theme().color("text_muted"))
            painter.drawText(QRectF(SPACE_4, y, self.width(), line), left, label)
            painter.setPen(theme().color("text"))
            painter.drawText(QRectF(0, y, end, line), right, bytes_text(size(need)))
            if ram is not None:
                value = QRectF(end, y, column, line)
                painter.drawText(value, right, bytes_text(size(ram)))


def _parts_text(part: Need | InRam) -> str:
    return ", ".join(f"{label} {bytes_text(size(part))}" for label, _, size in PARTS)


BAR = 8
PALE = 0.4


def _paint_parts(
    painter: QPainter,
    area: QRectF,
    parts: Sequence[Need | InRam],
    scale: float,
    limit: int,
    fits: bool,
) -> None:
    """What `parts` need, the first in full colours, with a line at `limit` bytes. `scale`: pixels
    per byte."""
    colors, left = theme(), 0.0
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colors.color("pressed"))
    painter.drawRect(area)
    for part in parts:
        painter.setOpacity(1.0 if part is parts[0] else PALE)
        for _, color, size in PARTS:
            width = max(size(part) * scale, 1.0)
            painter.setBrush(colors.color(color))
            painter.drawRect(QRectF(left, area.top(), width, area.height()))
            left += width
    painter.setOpacity(1.0)
    painter.setPen(QPen(colors.color("text" if fits else "danger"), 1.5))
    at = limit * scale
    painter.drawLine(QPointF(at, area.top() - 2), QPointF(at, area.bottom() + 2))


class FitRows(QWidget):
    """Rows of `Fit`; hidden without any."""

    def __init__(self) -> None:
        super().__init__()
        self._fits: list[Fit] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)
        self.hide()

    def show_fits(self, fits: Sequence[Fit]) -> None:
        self._fits = list(fits)
        self.setAccessibleName(self.text())
        self.setToolTip(self._explanation() if fits else "")
        self.setVisible(bool(fits))
        self.updateGeometry()
        self.update()

    def text(self) -> str:
        """Names and figures of the rows."""
        return "\n".join(f"{fit.name}: {_figures(fit)}" for fit in self._fits)

    def sizeHint(self) -> QSize:
        return QSize(360, self._row_height() * len(self._fits))

    def minimumSizeHint(self) -> QSize:
        return QSize(200, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._fits:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        limit = self._fits[0].need.limit
        most = max(limit, *(fit.need.everywhere for fit in self._fits))
        scale = self.width() / (most * 1.02)
        for row, fit in enumerate(self._fits):
            top = row * self._row_height()
            self._paint_text(painter, fit, top)
            bar = QRectF(0, top + self._line_height() + 2, self.width(), BAR)
            parts = [fit.need, *([fit.need.in_ram] if fit.need.in_ram else ())]
            _paint_parts(painter, bar, parts, scale, limit, fit.need.fits)
        painter.end()

    def _line_height(self) -> int:
        return self.fontMetrics().height()

    def _row_height(self) -> int:
        return self._line_height() + 2 + BAR + SPACE_3

    def _paint_text(self, painter: QPainter, fit: Fit, top: int) -> None:
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
        short = painter.fontMetrics().elidedText(fit.name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(line, Qt.AlignmentFlag.AlignLeft | middle, short)

    def _explanation(self) -> str:
        parts = ", ".join(label for label, _, _ in PARTS)
        need = self._fits[0].need
        words = (
            f"Left to right: {parts}. Vertical line: {bytes_text(need.limit)} usable of "
            f"{bytes_text(need.free)} free. "
            f"Context length: {need.max_model_len:,} tokens."
        )
        if not any(fit.need.in_ram for fit in self._fits):
            return words
        return f"{words} Lighter shade: CPU-offloaded layers in RAM."


def _figures(fit: Fit) -> str:
    return f"{bytes_text(fit.need.everywhere)} · {fit.text}"
