"""`StatStrip`: model, state and leading figures with sparklines, at the top of the window."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QHelpEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolTip, QWidget

from engine.snapshot import EngineSnapshot
from engine.units import bytes_text, duration_text
from widgets.live.figures import (
    EMPTY,
    FIGURES,
    Figure,
    State,
    StateKind,
    changes_by_itself,
    device_text,
    draw_sparkline,
    header_values,
    precision_text,
    state_text,
)
from widgets.live.metric_store import MetricStore
from widgets.live.model_button import ModelButton
from widgets.live.trends import TREND_S
from widgets.plot.clock import RedrawClock, work_time
from widgets.plot.text import TextPen
from widgets.theme.fonts import scaled
from widgets.theme.theme import (
    SPACE_2,
    SPACE_3,
    SPACE_4,
    SPACE_6,
    figure_font,
    theme,
    theme_notifier,
    ui_font,
)

_LEAST_WORDS = 250
"""Pixels that model and state keep before figures give way, at the default text size."""
_DOT = 8
_LINE_WIDTH, _LINE_HEIGHT = 56, 18
_BETWEEN = "  ·  "
_LINE_TIP = f"\nSparkline: last {duration_text(TREND_S)}"


class StatStrip(QFrame):
    """Model, precision and device; the engine's state; as many figures of `store` as fit, which
    is updated with each snapshot first. `clock` decides when the strip is painted. The state is the
    latest from `set_state` or a snapshot."""

    def __init__(
        self, store: MetricStore, clock: RedrawClock | None = None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.store = store
        self.clock = clock or RedrawClock(parent=self)
        self.setProperty("panel", True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Engine status")
        self._title, self._place = "No model", ""
        self._model = ("No model", "", "")
        self._state: State = ("Open a model to start", "idle")
        self._shown: State = self._state
        self._values = dict.fromkeys((one.key for one in FIGURES), EMPTY)
        self._templates = {one.key: one.template for one in FIGURES}
        self._dirty = True
        self._drawn_lines = -math.inf  # time of their newest point
        self.switch: ModelButton | None = None
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)
        self.clock.add(self)

    # What is shown ----------------------------------------------------------------------------

    def add_switch(self, pressed: Callable[[], object], command: str) -> ModelButton:
        """Make the first line a button, to choose another model; `command` does the same."""
        self.switch = ModelButton(self, pressed, command)
        self._show_title()
        return self.switch

    def set_place(self, place: str) -> None:
        """Location of a remote engine, before the first line; "" for the local one."""
        if place != self._place:
            self._place = place
            self._show_title()
            self._request_redraw()

    def set_model(self, name: str, precision: str = "", device: str = "") -> None:
        if (name, precision, device) != self._model:
            self._model = name, precision, device
            self._show_title()
        self._request_redraw()

    def _show_title(self) -> None:
        self._title = _joined(self._place, *self._model)
        self._place_switch()

    def set_state(self, text: str, kind: StateKind = "idle") -> None:
        """The second line: a dot in the colour of `kind`, and a text."""
        self._state = self._shown = text, kind
        self._request_redraw()

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take a snapshot: model and state."""
        model = snapshot.model
        size = bytes_text(model.weights_bytes) if model.weights_bytes else ""
        precision = _joined(size, precision_text(snapshot))
        self.set_model(model.name, precision, device_text(snapshot))
        self._state = state_text(snapshot)
        self.clock.take_snapshot()

    def clear(self) -> None:
        """Reset: no model is loaded."""
        self.set_model("No model")
        self.set_state("Open a model to start")

    @property
    def title(self) -> str:
        return self._title

    @property
    def state(self) -> State:
        return self._state

    def text(self) -> str:
        """The whole strip as text for screen readers."""
        figures = [self._words(one) for one in FIGURES]
        return "; ".join([self._title, self._shown[0], *figures])

    def _words(self, one: Figure) -> str:
        value = self._values[one.key]
        return f"{one.label} {value.why_not or f'{value.text} {value.unit or one.unit}'}"

    def _tip(self, one: Figure) -> str:
        value = header_values(self.store, self.store.time.now())[one.key]
        if value.why_not:
            return f"{one.label}: {value.why_not}"
        more = f"\n{value.more}" if value.more else ""
        return f"{one.label}: {one.tip}{more}{_LINE_TIP if one.trend else ''}"

    def _request_redraw(self) -> None:
        self._dirty = True
        if self.isVisible():
            self.clock.wake()

    def wants_redraw(self) -> bool:
        """Whether there is something new, a rate is still falling, or a latency grows old."""
        return self._dirty or changes_by_itself(self._values)

    def redraw(self) -> None:
        """Update figures and a snapshot's state at a beat of the clock; paint what changed."""
        before = self._values, self._drawn_lines
        if self.clock.is_beat:
            self._dirty = False
            self._shown = self._state
            self._values = header_values(self.store, self.store.time.now())
            self._drawn_lines = self.store.trends.newest
            for key, value in self._values.items():
                if len(value.text) > len(self._templates[key]):
                    self._templates[key] = re.sub(r"\d", "0", value.text)
            self._place_switch()  # figures may need more room, or fonts
        shown = self.text()
        if shown != self.accessibleDescription() or (self._values, self._drawn_lines) != before:
            self.setAccessibleDescription(shown)
            self.update()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._request_redraw()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_switch()

    def _place_switch(self) -> None:
        if self.switch is not None:
            (upper, _), right = self._rows(), self._words_end
            title, _ = self._lines(right)
            self.switch.show_title(title, self._title)
            height = self.switch.sizeHint().height()
            top = max(1, round(upper.center().y() - height / 2))
            width = min(self.switch.width_of(title), round(right) - SPACE_2)
            self.switch.setGeometry(SPACE_2, top, width, height)

    def _lines(self, right: float) -> tuple[str, str]:
        """Words of the two rows that end at `right`: of model and state. A device without room
        beside the model is beside the state."""
        *model, device = self._model
        if self.switch is None:
            width = SPACE_4 + QFontMetricsF(self._title_font).horizontalAdvance(self._title)
        else:
            width = SPACE_2 + self.switch.width_of(self._title)
        if width <= right or not device:
            return self._title, self._shown[0]
        return _joined(self._place, *model), _joined(self._shown[0], device)

    # Layout and painting ----------------------------------------------------------------------

    def _take_fonts(self) -> None:
        self._label_pen = TextPen(ui_font("small"))
        self._value_pen = TextPen(figure_font("large", QFont.Weight.DemiBold))
        self._unit_pen = TextPen(ui_font("small", QFont.Weight.DemiBold))
        self._title_font = ui_font("body", QFont.Weight.DemiBold)
        self._state_font = figure_font("body")
        value = QFontMetricsF(self._value_pen.font)
        label = QFontMetricsF(self._label_pen.font)
        self._line_heights = (label.height(), value.height())
        # the unit stands on the value's base line
        self._unit_drop = (value.ascent() - value.descent()) / 2 - (
            (label.ascent() - label.descent()) / 2
        )
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(900, round(sum(self._line_heights)) + 2 * SPACE_2)

    def minimumSizeHint(self) -> QSize:
        return QSize(_LEAST_WORDS, self.sizeHint().height())

    def _width_of(self, one: Figure) -> float:
        value = self._value_pen.width(self._templates[one.key]) + 5 + self._unit_pen.width(one.unit)
        return math.ceil(max(value, self._label_pen.width(one.label)))

    def shown_figures(self) -> list[tuple[Figure, QRectF]]:
        """The figures that fit, with their rectangles; the sparklines if they fit too."""
        shown = list(FIGURES)
        room = self.width() - 2 * SPACE_3 - scaled(_LEAST_WORDS)
        lines = (SPACE_2 + _LINE_WIDTH) * sum(bool(one.trend) for one in FIGURES)
        has_lines = sum(self._width_of(f) + SPACE_6 for f in shown) + lines <= room
        while shown and sum(self._width_of(f) + SPACE_6 for f in shown) > room:
            shown.remove(max(shown, key=lambda f: f.drop))
        right = float(self.width() - SPACE_4)
        placed = []
        for one in reversed(shown):
            width = self._width_of(one)
            if has_lines and one.trend:
                width += SPACE_2 + _LINE_WIDTH
            placed.append((one, QRectF(right - width, 0, width, self.height())))
            right -= width + SPACE_6
        return placed[::-1]

    def paintEvent(self, event: QPaintEvent) -> None:
        start = work_time()
        super().paintEvent(event)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        placed = self.shown_figures()
        self._draw_text(painter, self._words_end)
        for one, rect in placed:
            self._draw_figure(painter, one, rect)
        painter.end()
        self.clock.charge(work_time() - start)

    @property
    def _words_end(self) -> float:
        placed = self.shown_figures()
        return placed[0][1].left() - SPACE_4 if placed else self.width() - SPACE_4

    def _rows(self) -> tuple[QRectF, QRectF]:
        small, large = self._line_heights
        top = (self.height() - small - large) / 2
        return QRectF(0, top, 0, small), QRectF(0, top + small, 0, large)

    def _draw_text(self, painter: QPainter, right: float) -> None:
        table = theme()
        upper, lower = self._rows()
        left = float(SPACE_4)
        title, state = self._lines(right)
        for row, font, text, x in (
            (upper, self._title_font, title if self.switch is None else "", left),
            (lower, self._state_font, state, left + SPACE_4),
        ):
            painter.setFont(font)
            painter.setPen(table.color("text"))
            metrics = QFontMetricsF(font)
            text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, right - x)
            place = QRectF(x, row.center().y() - metrics.height() / 2, right - x, metrics.height())
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, text)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(table.color(f"state_{self._shown[1]}"))
        painter.drawEllipse(QRectF(left, lower.center().y() - _DOT / 2, _DOT, _DOT))

    def _draw_figure(self, painter: QPainter, one: Figure, rect: QRectF) -> None:
        table = theme()
        upper, lower = self._rows()
        upper.setLeft(rect.left())
        lower.setLeft(rect.left())
        painter.setPen(table.color("text_muted"))
        self._label_pen.use(painter).left(painter, upper, one.label)
        value = self._values[one.key]
        painter.setPen(table.color("text" if value.is_firm else "text_muted"))
        self._value_pen.use(painter).left(painter, lower, value.text)
        painter.setPen(table.color("text_muted"))
        unit = lower.translated(self._value_pen.width(value.text) + 5, self._unit_drop)
        unit_text = value.unit or one.unit
        self._unit_pen.use(painter).left(painter, unit, unit_text)
        if one.trend and rect.width() > self._width_of(one):
            places, values = self.store.trends.points(one.key)
            top = rect.center().y() - _LINE_HEIGHT / 2
            place = QRectF(rect.right() - _LINE_WIDTH, top, _LINE_WIDTH, _LINE_HEIGHT)
            end = unit.left() + self._unit_pen.width(unit_text) + SPACE_2
            place.setLeft(max(place.left(), end))  # a value longer than most
            color = QColor(table.line_color(one.trend))
            if np.isfinite(values).sum() > 1:
                painter.setPen(table.color("grid"))
                painter.drawLine(place.bottomLeft(), place.bottomRight())
            draw_sparkline(painter, place, places, values, 1.0, color)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            tip = next(
                (self._tip(f) for f, place in self.shown_figures() if place.contains(event.pos())),
                f"{self._title}\n{self._shown[0]}",
            )  # fmt: skip
            QToolTip.showText(event.globalPos(), tip, self)
            return True
        return super().event(event)


def _joined(*parts: str) -> str:
    return _BETWEEN.join(filter(None, parts))
