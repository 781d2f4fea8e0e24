"""Memory bars: needed against usable. With CPU offload one bar for the GPU and one for RAM; with
several GPUs that of each.

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
from app.units import format_bytes
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

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
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
        usable = f"{format_bytes(need.limit)} usable of {format_bytes(need.free)} free."
        words = f"{_parts_text(need)}: {format_bytes(need.needed)} needed, {usable}"
        if need.where:
            return f"{need.where[:1].upper()}{need.where[1:]}: {words}"
        if (ram := need.in_ram) is None:
            return words
        return (
            f"{need.device}: {words} RAM: {_parts_text(ram)}: {format_bytes(ram.needed)} needed, "
            f"{format_bytes(ram.limit)} usable."
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
        name = need.device if need.in_ram is not None else need.where
        self._paint_bar(painter, need, 0, name)
        if need.in_ram is not None:
            self._paint_bar(painter, need.in_ram, self._bar_height(), IN_RAM)
        self._paint_legend(painter, need)
        painter.end()

    def _paint_bar(self, painter: QPainter, part: Need | InRam, above: int, name: str) -> None:
        """Labels at `above`, the bar below them."""
        colors, top = theme(), above + self.fontMetrics().height() + SPACE_1
        fits = part.needed <= part.limit
        scale = self.width() / (max(part.needed, part.limit, 1) * 1.02)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colors.color("pressed"))
        painter.drawRect(QRectF(0, top, self.width(), BAR_HEIGHT))
        left = 0.0
        for _, color, size in PARTS:
            width = max(size(part) * scale, 1.0)
            painter.setBrush(colors.color(color))
            painter.drawRect(QRectF(left, top, width, BAR_HEIGHT))
            left += width
        limit = part.limit * scale
        painter.setPen(QPen(colors.color("text" if fits else "danger"), 1.5))
        painter.drawLine(int(limit), int(top - SPACE_1), int(limit), int(top + BAR_HEIGHT + 2))
        painter.setPen(colors.color("text_muted"))
        words = f"usable {format_bytes(part.limit)}"
        width = self.fontMetrics().horizontalAdvance(words)
        named = self.fontMetrics().horizontalAdvance(f"{name}  ") if name else 0
        at = min(max(named, limit - width - SPACE_1), self.width() - width)
        line = top - SPACE_1 - above
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
            painter.drawText(QRectF(0, y, end, line), right, _in_unit_of(need, size(need)))
            if ram is not None:
                value = QRectF(end, y, column, line)
                painter.drawText(value, right, _in_unit_of(need, size(ram)))


def _parts_text(part: Need | InRam) -> str:
    return ", ".join(f"{label} {format_bytes(size(part))}" for label, _, size in PARTS)


def _in_unit_of(need: Need, num_bytes: int) -> str:
    """A size in the unit of the total: one unit per column."""
    if need.needed >= 2**30:
        return f"{num_bytes / 2**30:.2f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB"


BAR = 8
PALE = 0.4


class FitRows(QWidget):
    """Rows of `Fit`; hidden without any."""

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
        """Rows with other names, such as models."""
        self._fits = list(fits)
        self.setAccessibleName(self.text())
        self.setToolTip(self._explanation())
        self.setVisible(bool(fits))
        self.updateGeometry()
        self.update()

    def text(self) -> str:
        """Names and figures of the rows."""
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
        parts = ", ".join(label for label, _, _ in PARTS)
        need = self._fits[0][1].need
        words = (
            f"From the left: {parts}. Line: usable memory, {format_bytes(need.limit)} of "
            f"{format_bytes(need.free)} free{f' {need.where}' if need.where else ''}. "
            f"Context: {need.max_model_len:,} tokens."
        )
        if not any(fit.need.in_ram for _, fit in self._fits):
            return words
        return f"{words} Paler: in RAM, layers computed by the CPU."


def _figures(fit: Fit) -> str:
    size = f"{format_bytes(fit.need.everywhere)} {fit.need.where}".rstrip()
    return f"{size} · {fit.text}"
