"""`ValueBars`: a horizontal bar chart, each bar with its figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QPainter
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.plot.painted import PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, theme, ui_font

_BAR = 14
_LABEL_SHARE = 0.3


class ValueBar(NamedTuple):
    """`value` is None where it is not known; `is_best` is marked."""

    label: str
    value: float | None
    text: str
    is_best: bool = False


class ValueBars(PaintedPlot):
    """The axis starts at zero, unless it is fitted to the values (`set_fit`)."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(name, parent=parent)
        self._bars: tuple[ValueBar, ...] = ()
        self._fits = False
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    @property
    def bars(self) -> tuple[ValueBar, ...]:
        return self._bars

    def show_bars(self, bars: Sequence[ValueBar]) -> None:
        self._bars = tuple(bars)
        best = {bar.label for bar in bars if bar.is_best}
        words = (f"{b.label}: {b.text}{', best' if b.label in best else ''}" for b in bars)
        self.setAccessibleDescription("; ".join(words))
        self.updateGeometry()
        self.update()

    def values_table(self) -> ValuesTable:
        """A row per bar; the value is in the unit of the text beside it."""
        rows = tuple((b.label, b.value, b.text, "best" if b.is_best else "") for b in self._bars)
        return ValuesTable(("of", "value", "shown as", ""), rows, (0, 6, 0, 0))

    def set_fit(self, fits: bool) -> None:
        """Start the axis just below the least value: differences are seen, proportions are not."""
        self._fits = fits
        self.update()

    def _line(self) -> float:
        return max(QFontMetricsF(figure_font()).height(), _BAR) + SPACE_2

    def sizeHint(self) -> QSize:
        return QSize(320, round(self._line() * max(1, len(self._bars))))

    def minimumSizeHint(self) -> QSize:
        return QSize(160, self.sizeHint().height())

    def share(self, bar: ValueBar) -> float:
        """Length of a bar, 0 to 1."""
        values = [b.value for b in self._bars if b.value is not None]
        if bar.value is None or not values:
            return 0.0
        low, high = min(0.0, *values), max(values)
        if self._fits and high > min(values):
            low = min(values) - 0.1 * (high - min(values))
        return (bar.value - low) / (high - low) if high > low else 0.0

    def paint(self, painter: QPainter) -> None:
        table, line = theme(), self._line()
        figures, words = QFontMetricsF(figure_font()), QFontMetricsF(ui_font("small"))
        wide = max((words.horizontalAdvance(bar.label) for bar in self._bars), default=0.0)
        label = min(wide, self.width() * _LABEL_SHARE)
        value = max((figures.horizontalAdvance(bar.text) for bar in self._bars), default=0.0)
        left = label + SPACE_3
        room = max(1.0, self.width() - left - value - SPACE_2)
        middle = Qt.AlignmentFlag.AlignVCenter
        for place, bar in enumerate(self._bars):
            top = place * line
            painter.setFont(ui_font("small"))
            painter.setPen(table.color("text_muted"))
            cut = words.elidedText(bar.label, Qt.TextElideMode.ElideMiddle, label)
            painter.drawText(QRectF(0, top, label, line), middle, cut)
            length = self.share(bar) * room
            area = QRectF(left, top + (line - _BAR) / 2, length, _BAR)
            painter.fillRect(area, table.color("accent" if bar.is_best else "border_strong"))
            painter.setFont(figure_font())
            painter.setPen(table.color("text"))
            text = QRectF(left + length + SPACE_1 + 2, top, value + SPACE_2, line)
            painter.drawText(text, middle, bar.text)
