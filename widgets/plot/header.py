"""`ChartHeader`: title, legend that toggles series, note."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QHBoxLayout, QSizePolicy, QWidget

from widgets.controls.lines import title_line
from widgets.plot.series import Series, SeriesKind
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme, ui_font

_SWATCH = 9


class LegendKey(QAbstractButton):
    """The colour and the name of one series; switched off it is pale and struck through."""

    def __init__(self, series: Series, parent: QWidget | None = None) -> None:
        super().__init__(parent)
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
    """All keys of a chart in a row."""

    toggled = Signal(str, bool)  # key, shown

    def __init__(self, series: Sequence[Series], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        self.keys: dict[str, LegendKey] = {}
        self._is_compact = False
        for one in series:
            key = LegendKey(one, self)
            key.toggled.connect(lambda shown, name=one.key: self.toggled.emit(name, shown))
            row.addWidget(key)
            self.keys[one.key] = key
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def fit(self, width: int) -> None:
        """Leave the names out where they do not fit (the newest values carry them too)."""
        compact = width < self.full_width
        if compact != self._is_compact:
            self._is_compact = compact
            for key in self.keys.values():
                key.is_compact = compact
                key.updateGeometry()

    @property
    def full_width(self) -> int:
        """Pixels that the keys need with their names."""
        metrics = QFontMetrics(ui_font("small"))
        shown = [key for key in self.keys.values() if not key.isHidden()]
        names = sum(metrics.horizontalAdvance(key.text()) for key in shown)
        return names + len(shown) * (_SWATCH + 2 * SPACE_1 + SPACE_2)

    def set_shown(self, key: str, shown: bool) -> None:
        self.keys[key].setChecked(shown)

    def set_available(self, key: str, available: bool) -> None:
        """Take the key of a series that has no data out of the row, or put it back."""
        self.keys[key].setVisible(available)


class NoteLabel(QWidget):
    """One line of small, muted text at the right; left out where it does not fit. The tool tip
    and the accessible name have it always."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def text(self) -> str:
        return self._text

    def set_text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.setAccessibleName(text)
            self.setToolTip(text)
            self.updateGeometry()
            self.update()

    @property
    def fits(self) -> bool:
        """Whether the text is shown."""
        return self.width() >= self._text_width

    @property
    def _text_width(self) -> int:
        return QFontMetrics(ui_font("small")).horizontalAdvance(self._text)

    def sizeHint(self) -> QSize:
        return QSize(self._text_width, QFontMetrics(ui_font("small")).height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.fits:
            return
        painter = QPainter(self)
        painter.setFont(ui_font("small"))
        painter.setPen(theme().color("text_muted"))
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(self.rect(), flags, self._text)
        painter.end()


class ChartHeader(QWidget):
    """Gives way in this order: the note, then the names in the legend, then the title."""

    def __init__(self, title: str, series: Sequence[Series], parent: QWidget) -> None:
        super().__init__(parent)
        self._title = title_line(title)
        self.legend = Legend(series, self)
        self._note = NoteLabel(self)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, 0, SPACE_3, 0)
        row.setSpacing(SPACE_3)
        row.addWidget(self._title)
        row.addWidget(self.legend)
        row.addWidget(self._note, 1)

    @property
    def note(self) -> str:
        return self._note.text()

    def set_note(self, text: str) -> None:
        self._note.set_text(text)
        self._title.setToolTip(f"{self._title.text()}\n{text}" if text else self._title.text())

    def fit(self) -> None:
        """Give the legend the room that the title leaves."""
        self.legend.fit(self.width() - self._title.sizeHint().width() - 4 * SPACE_3)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()
