"""`ChartHeader`: title, legend that toggles series, note."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QWidget

from widgets.controls.layouts import hbox
from widgets.controls.lines import ElidedLine, title_line
from widgets.plot.series import Series, SeriesKind
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme, ui_font

_SWATCH = 9


class LegendKey(QAbstractButton):
    """Colour and name of one series; pale and struck through while hidden."""

    def __init__(self, series: Series) -> None:
        super().__init__()
        self.series = series
        self.setText(series.label)
        self.setCheckable(True)
        self.setChecked(True)
        self.is_compact = False
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        tip = f"{series.label}: {series.tip}" if series.tip else series.label
        self.setToolTip(f"{tip}\nClick to toggle")
        self.setAccessibleName(f"Show {series.label}")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        metrics = QFontMetrics(ui_font("small"))
        width = _SWATCH + SPACE_1
        if not self.is_compact:
            width += metrics.horizontalAdvance(self.text()) + SPACE_1
        return QSize(width, metrics.height() + 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        table = theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        color = QColor(table.line_color(self.series.color))
        middle = self.height() / 2
        if not self.isChecked():
            color = table.color("text_disabled")
        if self.series.kind is SeriesKind.DOTS:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(color)
            painter.drawEllipse(QRectF(2.5, middle - 2, 4, 4))
        elif self.series.kind is SeriesKind.AREA:
            painter.fillRect(QRectF(0, round(middle) - 4, 8, 8), color)
        else:
            pen = QPen(color, 2.0)
            if self.series.dashed:
                pen.setCapStyle(Qt.PenCapStyle.FlatCap)  # others would fill the gaps
                pen.setDashPattern([1.5, 1])
            painter.setPen(pen)
            painter.drawLine(0, round(middle), _SWATCH, round(middle))
        font = ui_font("small")
        font.setStrikeOut(not self.isChecked())
        painter.setFont(font)
        painter.setPen(table.color("text_muted" if self.isChecked() else "text_disabled"))
        if self.underMouse():
            painter.setPen(table.color("text"))
        place = QRectF(_SWATCH + SPACE_1, 0, self.width(), self.height())
        if not self.is_compact:
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, self.text())
        if self.hasFocus():
            painter.setPen(table.color("accent"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 3, 3)
        painter.end()


class Legend(QWidget):
    def __init__(self, series: Sequence[Series]) -> None:
        super().__init__()
        self.keys = {one.key: LegendKey(one) for one in series}
        hbox(*self.keys.values(), of=self)
        self.is_compact = False
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    @property
    def names(self) -> set[str]:
        """The names that it shows."""
        keys = self.keys.values()
        return set() if self.is_compact else {key.text() for key in keys if not key.isHidden()}

    def fit(self, width: int) -> None:
        """Hide the names where they do not fit: they are beside the newest values then."""
        metrics = QFontMetrics(ui_font("small"))
        shown = [key for key in self.keys.values() if not key.isHidden()]
        names = sum(metrics.horizontalAdvance(key.text()) for key in shown)
        compact = width < names + len(shown) * (_SWATCH + 2 * SPACE_1 + SPACE_2)
        if compact != self.is_compact:
            self.is_compact = compact
            for key in self.keys.values():
                key.is_compact = compact
                key.updateGeometry()


class NoteLabel(ElidedLine):
    """Right-aligned small, muted text; hidden where it does not fit. Tooltip and accessible name
    always have it."""

    alignment = Qt.AlignmentFlag.AlignRight

    def __init__(self) -> None:
        super().__init__("text_muted", hugs=True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.is_cut():
            super().paintEvent(event)


class ChartHeader(QWidget):
    """Shrinks in this order: the note, the names in the legend, the title."""

    def __init__(self, title: str, series: Sequence[Series], parent: QWidget) -> None:
        super().__init__(parent)
        self.hint = ""  # in the tooltip of the title
        self._title, self.legend, self._note = title_line(title), Legend(series), NoteLabel()
        margins = (SPACE_3, 0, SPACE_3, 0)
        hbox(self._title, self.legend, (self._note, 1), of=self, spacing=SPACE_3, margins=margins)

    @property
    def note(self) -> str:
        return self._note.text()

    @property
    def title(self) -> str:
        return self._title.text()

    def set_title(self, text: str) -> None:
        self._title.set_text(text)
        self._show_tip()

    def set_note(self, text: str) -> None:
        self._note.set_text(text)
        self._show_tip()

    def _show_tip(self) -> None:
        self._title.setToolTip("\n".join(filter(None, (self.title, self.note, self.hint))))

    def fit(self) -> None:
        """Give the legend the room beside the title."""
        self.legend.fit(self.width() - self._title.sizeHint().width() - 4 * SPACE_3)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()
