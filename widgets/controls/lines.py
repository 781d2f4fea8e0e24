"""`ElidedLine`, title lines, rich single lines and the secret field."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent, QTextCharFormat, QTextLayout
from PySide6.QtWidgets import QLineEdit, QPushButton, QSizePolicy, QWidget

from widgets.theme.fonts import SizeRole, mono_font
from widgets.theme.theme import theme, theme_notifier, ui_font


class ElidedLine(QWidget):
    """One elided line of text, small by default; the tooltip has the full text. `hugs`: it is as
    wide as its text, and shrinks if necessary."""

    alignment = Qt.AlignmentFlag.AlignLeft
    elide_mode = Qt.TextElideMode.ElideRight

    def __init__(
        self,
        color: str = "text",
        role: SizeRole = "small",
        weight: QFont.Weight = QFont.Weight.Normal,
        *,
        hugs: bool = False,
    ) -> None:
        super().__init__()
        self._text, self._color, self._role, self._weight = "", color, role, weight
        self._hugs = hugs
        policies = QSizePolicy.Policy
        self.setSizePolicy(policies.Maximum if hugs else policies.Ignored, policies.Fixed)
        theme_notifier().changed.connect(self._renew)

    def text(self) -> str:
        return self._text

    def is_cut(self) -> bool:
        """Whether the text is elided."""
        return QFontMetrics(self._font()).horizontalAdvance(self._text) > self.width()

    def set_text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.setToolTip(text)
            self.setAccessibleName(text)
            if self._hugs:
                self.updateGeometry()
            self.update()

    def sizeHint(self) -> QSize:
        metrics = QFontMetrics(self._font())
        width = metrics.horizontalAdvance(self._text) + 1 if self._hugs else 200
        return QSize(width, metrics.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.sizeHint().height())

    def _font(self) -> QFont:
        return ui_font(self._role, self._weight)

    def _renew(self) -> None:
        self.updateGeometry()
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = self._font()
        painter.setFont(font)
        painter.setPen(theme().color(self._color))
        cut = QFontMetrics(font).elidedText(self._text, self.elide_mode, self.width())
        painter.drawText(self.rect(), self.alignment | Qt.AlignmentFlag.AlignVCenter, cut)
        painter.end()


def title_line(text: str = "", *, hugs: bool = True) -> ElidedLine:
    """An elided title; `hugs` as for ElidedLine."""
    title = ElidedLine("text", "body", QFont.Weight.DemiBold, hugs=hugs)
    title.set_text(text)
    return title


_ONE_LINE = 10_000  # pixels: nothing wraps


def marked_line(
    text: str, font: QFont, marks: Sequence[tuple[int, int]], marked: QTextCharFormat
) -> QTextLayout:
    """A layout of `text` on one line, with the ranges (start, end) in `marks` formatted as
    `marked`. Draw it at the upper left corner; unformatted text has the painter's pen."""
    layout = QTextLayout(text, font)
    ranges = []
    for start, end in marks:
        part = QTextLayout.FormatRange()
        part.start, part.length, part.format = start, end - start, marked
        ranges.append(part)
    layout.setFormats(ranges)
    layout.beginLayout()
    layout.createLine().setLineWidth(_ONE_LINE)
    layout.endLayout()
    return layout


class SecretLine(QLineEdit):
    """A password field. `reveal`: its button, placed by the form. `name`: accessible name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setEchoMode(QLineEdit.EchoMode.Password)
        self.setFont(mono_font())
        self.setPlaceholderText("none")
        self.setAccessibleName(name)
        self.reveal = QPushButton("Show")
        self.reveal.setCheckable(True)
        self.reveal.setToolTip("Show key")
        self.reveal.toggled.connect(self._reveal)

    def _reveal(self, is_shown: bool) -> None:
        self.reveal.setText("Hide" if is_shown else "Show")
        echo = QLineEdit.EchoMode
        self.setEchoMode(echo.Normal if is_shown else echo.Password)
