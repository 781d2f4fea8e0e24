"""`StepLink`: the timeline's part in the cursor that views share."""

from __future__ import annotations

from PySide6.QtCore import QObject

from engine.snapshot import StepRecord
from widgets.plot.link import LinkedCursor
from widgets.plot.painted import NONE
from widgets.timeline.view import TimelineView


class StepLink(QObject):
    """Pointing at a step points at its end in the charts, and back. A chosen step has the cursor
    while nothing points."""

    def __init__(self, view: TimelineView, cursor: LinkedCursor, parent: QObject) -> None:
        super().__init__(parent)
        self._view, self.cursor = view, cursor
        self._is_following = False
        view.pointed.connect(self._on_pointed)
        view.chosen.connect(lambda ordinal: self._on_pointed(NONE))
        cursor.changed.connect(self._follow)

    @property
    def chosen(self) -> StepRecord | None:
        history, ordinal = self._view.history, self._view.chosen_index
        return history.record(ordinal) if history.first <= ordinal < history.end else None

    def _on_pointed(self, ordinal: int) -> None:
        history = self._view.history
        if self._is_following:
            return
        if history.first <= ordinal < history.end:
            self.cursor.point(history.record(ordinal).end, self._view)
        elif self.cursor.source is self._view or self.cursor.time is None:
            self._rest()

    def _rest(self) -> None:
        step = self.chosen
        if step is None:
            self.cursor.leave(self._view)
        else:
            self.cursor.point(step.end, self._view)

    def _follow(self) -> None:
        """Another view moved the cursor, or left it."""
        if self.cursor.source is self._view:
            return
        if self.cursor.time is None:
            self._rest()
        at = self.cursor.time if self.cursor.source is not self._view else None
        self._is_following = True
        try:
            self._view.point_at(NONE if at is None else self._view.history.ordinal_at(at))
        finally:
            self._is_following = False
