"""Labels and a meter that adapt to the available width: context usage, figures of a reply."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from widgets.theme.theme import figure_font, theme, theme_notifier


class FittingLine(QLabel):
    """Shows the longest of `lines` that fits, else the shortest, elided."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[str] = ("",)
        self.setProperty("role", "small")
        self.setFont(figure_font("small"))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def show_lines(self, *lines: str) -> None:
        """`lines`: from the longest to the shortest."""
        if lines != self.lines:
            self.lines = lines
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def _fit(self) -> None:
        width, metrics = max(self.width(), self.minimumWidth()), self.fontMetrics()
        fitting = (line for line in self.lines if metrics.horizontalAdvance(line) <= width)
        line = next(fitting, self.lines[-1])
        text = metrics.elidedText(line, Qt.TextElideMode.ElideRight, width)
        if text != self.text():
            self.setText(text)


BETWEEN = "    "
_LEAST_WIDTH = 60


class FiguresLine(FittingLine):
    """Groups of figures; where they do not fit, without their details in parentheses, and then as
    many as fit, from the left: half a number is another number. Selectable text."""

    def __init__(self) -> None:
        super().__init__()
        self.setMinimumWidth(_LEAST_WIDTH)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)

    def show_line(self, line: str) -> None:
        """`line`: groups separated by BETWEEN."""
        short = [group.partition(" (")[0] for group in line.split(BETWEEN)]
        fewer = (BETWEEN.join(short[:count]) for count in range(len(short), 0, -1))
        self.show_lines(*dict.fromkeys((line, *fewer)))


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
        """`used` and `limit` in tokens; hidden where the limit is unknown (0)."""
        if (used, draft, limit) != (self._used, self._draft, self._limit):
            self._used, self._draft, self._limit = used, draft, limit
            text = f"{used:,} of {limit:,} tokens used, about {draft:,} more in this message"
            self.setAccessibleDescription(text)
            self.setToolTip(text)
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
