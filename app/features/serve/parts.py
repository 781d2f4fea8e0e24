"""Shared parts: `FigureRow`, `StateLine`, `CopyButton`, scrolled forms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFont, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSizePolicy,
    QStyle,
    QWidget,
)

from app.features.quantize.fields import Field
from app.server.options import Problem
from engine.units import NOTHING
from widgets.controls.layouts import STRETCH, dressed, hbox, label, vbox, wrapped
from widgets.live.figures import StateKind
from widgets.theme.theme import SPACE_2, SPACE_4, figure_font, restyle, theme, theme_notifier


class Figure(NamedTuple):
    """`widest`: the widest text, to reserve the room."""

    key: str
    label: str
    widest: str
    tip: str


class FigureRow(QWidget):
    def __init__(self, name: str, figures: Sequence[Figure], *, width: int = 104) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self._width, self._columns = width, 0
        self._cells = {figure.key: _Cell(figure) for figure in figures}
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_4)
        self._grid.setVerticalSpacing(SPACE_2)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self._arrange(len(self._cells))

    def show_values(self, values: dict[str, str]) -> None:
        """Texts by key; missing keys show no value."""
        for key, cell in self._cells.items():
            cell.show_value(values.get(key, NOTHING))

    def value(self, key: str) -> str:
        return self._cells[key].value.text()

    def set_muted(self, is_muted: bool, keys: Collection[str] = ()) -> None:
        """All values, or those of `keys`."""
        for key, cell in self._cells.items():
            cell.set_muted(is_muted or key in keys)

    def set_tip(self, key: str, text: str) -> None:
        self._cells[key].setToolTip(text)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        count = len(self._cells)
        least = max(self._width, *(cell.minimumSizeHint().width() for cell in self._cells.values()))
        columns = max(1, min(count, (self.width() + SPACE_4) // (least + SPACE_4)))
        rows = -(-count // columns)
        self._arrange(-(-count // rows))  # rows of the same length

    def _arrange(self, columns: int) -> None:
        if columns == self._columns:
            return
        for column in range(max(columns, self._columns) + 1):
            self._grid.setColumnStretch(column, int(column < columns))
        self._columns = columns
        for place, cell in enumerate(self._cells.values()):
            self._grid.addWidget(cell, *divmod(place, columns))


class _Cell(QWidget):
    def __init__(self, figure: Figure) -> None:
        super().__init__()
        self._figure = figure
        self.setToolTip(figure.tip)
        self.value = QLabel(NOTHING)
        vbox(label(figure.label, "small"), self.value, of=self, spacing=0)
        theme_notifier().changed.connect(self._fit)
        self._fit()

    def show_value(self, text: str) -> None:
        if text != self.value.text():
            self.value.setText(text)
            self.setAccessibleName(f"{self._figure.label}: {text}")

    def set_muted(self, is_muted: bool) -> None:
        role = "muted" if is_muted else ""
        if (self.value.property("role") or "") != role:
            restyle(self.value, role=role)

    def _fit(self) -> None:
        self.value.setFont(figure_font("body", QFont.Weight.DemiBold))
        self.value.ensurePolished()
        self.value.setMinimumWidth(self.value.fontMetrics().horizontalAdvance(self._figure.widest))


_DOT = 8


class Dot(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._kind: StateKind = "idle"
        self.setFixedSize(QSize(_DOT + 2, _DOT + 2))
        theme_notifier().changed.connect(self.update)

    def set_kind(self, kind: StateKind) -> None:
        if kind != self._kind:
            self._kind = kind
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color(f"state_{self._kind}"))
        painter.drawEllipse(QRectF(1, 1, _DOT, _DOT))
        painter.end()


class StateLine(QWidget):
    """A dot and a text; `role` as of a label."""

    def __init__(self, role: str = "") -> None:
        super().__init__()
        self._dot, self._label = Dot(), wrapped(role)
        hbox(self._dot, (self._label, 1), of=self)

    def say(self, text: str, kind: StateKind) -> None:
        self._dot.set_kind(kind)
        if text != self._label.text():
            self._label.setText(text)
            self.setAccessibleName(text)

    @property
    def wanted_width(self) -> int:
        """Width of the text in one line."""
        words = self._label.fontMetrics().horizontalAdvance(self._label.text())
        return self._dot.width() + SPACE_2 + words

    def text(self) -> str:
        return self._label.text()


class Scrolled(QScrollArea):
    """`name`: accessible name. Fields take the focus; else see `scroll_by_keys`."""

    def __init__(self, inside: QWidget, name: str) -> None:
        super().__init__(widgetResizable=True)
        self.setAccessibleName(name)
        self._inside = dressed(inside, bare=True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidget(inside)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)

    def minimumSizeHint(self) -> QSize:
        bar = self.style().pixelMetric(QStyle.PixelMetric.PM_ScrollBarExtent)
        width = self._inside.minimumSizeHint().width() + bar
        return QSize(width, super().minimumSizeHint().height())


class ScrolledForm(Scrolled):
    """A form at its natural height."""

    def __init__(self, form: QWidget, name: str) -> None:
        holder = QWidget()
        vbox(form, STRETCH, of=holder, margins=(0, 0, SPACE_2, 0))
        super().__init__(holder, name)


def show_problems(
    fields: Mapping[str, tuple[Field, QLineEdit]], problems: Iterable[Problem], key_note: str
) -> None:
    """Show problems below their fields. `key_note`: a note about the key."""
    said = {problem.field: problem.text for problem in problems}
    for name, (field, line) in fields.items():
        text = said.get(name, "")
        if bool(line.property("invalid")) != bool(text):
            restyle(line, invalid=bool(text))
        if text:
            field.say(text, "error")
        else:
            field.say(key_note if name == "key" else "")
