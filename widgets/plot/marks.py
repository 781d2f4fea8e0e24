"""Marks and time ranges shared by the charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent

from widgets.plot.series import Mark, MarkKind

if TYPE_CHECKING:
    from widgets.plot.time_view import TimeView


MAX_MARKS = 64


class MarkLog(QObject):
    """The last `MAX_MARKS` marks in order. Where there are more, trials go first, but not the first
    of several in a row: the range of the change before it ends there. Charts that share a log
    show the same marks; the log outlives the charts."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.marks: tuple[Mark, ...] = ()

    def add(self, mark: Mark) -> None:
        marks = [*self.marks, mark]
        if len(marks) > MAX_MARKS:
            trial = MarkKind.TRIAL
            later = (i for i, pair in enumerate(pairwise(marks), 1)
                     if pair[0].kind is trial and pair[1].kind is trial)  # fmt: skip
            del marks[next(later, 0)]
        self.marks = tuple(marks)
        self.changed.emit()

    def clear(self) -> None:
        if self.marks:
            self.marks = ()
            self.changed.emit()


LEAST_S = 0.5
"""Shorter selections are ignored as accidental."""


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to `end`, in seconds of the charts' clock. `color` is a name of the theme."""

    label: str
    start: float
    end: float
    color: str = "accent"

    @property
    def seconds(self) -> float:
        return self.end - self.start


class SpanLog(QObject):
    """The spans shown by all charts that share the log."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.spans: tuple[Span, ...] = ()

    def show(self, *spans: Span) -> None:
        if spans != self.spans:
            self.spans = spans
            self.changed.emit()


_ENTER = (Qt.Key.Key_Return, Qt.Key.Key_Enter)


class SpanPicker(QObject):
    """Selects a time range on `chart`: by dragging over the plot with `modifier`, or by keyboard:
    one of `keys` starts it at the cross-line, arrows extend it, the key again ends it."""

    picked = Signal(float, float)  # start, end

    def __init__(
        self,
        chart: TimeView,
        modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier,
        keys: Sequence[Qt.Key] = _ENTER,
        least_s: float = LEAST_S,
    ) -> None:
        super().__init__(chart)
        self._chart = chart
        self._modifier, self._keys, self._least_s = modifier, keys, least_s
        self._began: float | None = None
        chart.view.viewport().installEventFilter(self)
        chart.installEventFilter(self)
        chart.pointed.connect(self._follow)

    @property
    def is_picking(self) -> bool:
        return self._began is not None

    def begin(self, at: float) -> None:
        self._began = at
        self._follow(at - self._chart.view.now)

    def end(self, at: float) -> None:
        """End the selection; nothing is selected if it is too short."""
        began, self._began = self._began, None
        self._show(None)
        if began is not None and abs(at - began) >= self._least_s:
            self.picked.emit(min(began, at), max(began, at))

    def cancel(self) -> None:
        self._began = None
        self._show(None)

    # -------------------------------------------------------------------------------------------

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            return watched is self._chart and self._on_key(event)
        if watched is self._chart or not isinstance(event, QMouseEvent):
            return False
        if event.button() is Qt.MouseButton.LeftButton:
            if event.type() == QEvent.Type.MouseButtonPress and self._begins(event):
                self._chart.setFocus(Qt.FocusReason.MouseFocusReason)
                self.begin(self._time_at(event))
                return True
            if event.type() == QEvent.Type.MouseButtonRelease and self.is_picking:
                self.end(self._time_at(event))
                return True
        if event.type() == QEvent.Type.MouseMove and self.is_picking:
            self._follow(self._time_at(event) - self._chart.view.now)
        return False

    def _on_key(self, event: QKeyEvent) -> bool:
        key = Qt.Key(event.key())
        if key is Qt.Key.Key_Escape and self.is_picking:
            self.cancel()
            return True
        if key not in self._keys or event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier:
            return False
        view = self._chart.view
        if view.cursor is None:
            self._chart.point_at(0.0)
        at = view.now + (view.cursor or 0.0)
        (self.end if self.is_picking else self.begin)(at)
        return True

    def _begins(self, event: QMouseEvent) -> bool:
        view = self._chart.view
        is_inside = not view.empty_text and view.plot_rect.contains(event.position())
        return is_inside and event.modifiers() == self._modifier

    def _time_at(self, event: QMouseEvent) -> float:
        """The time under the pointer, limited to the plot."""
        view = self._chart.view
        seconds = view.to_seconds(event.position().x())
        return view.now + min(max(seconds, -view.window_s), 0.0)

    def _follow(self, seconds: float | None) -> None:
        """Extend the selection to the cross-line."""
        if self._began is not None and seconds is not None:
            at = self._chart.view.now + seconds
            self._show(Span("", min(self._began, at), max(self._began, at)))

    def _show(self, span: Span | None) -> None:
        self._chart.view.picking = span
        self._chart.view.viewport().update()
