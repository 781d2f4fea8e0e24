"""`SharedView`: one view with several places, as a dock and as a page."""

from __future__ import annotations

import shiboken6
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from widgets.controls.layouts import centered, vbox

ELSEWHERE = "Shown in another panel."


class SharedView:
    """A view moves to the place that was shown last: there is one of it, with one state. The first
    place has it to begin with."""

    def __init__(self, view: QWidget) -> None:
        self.view = view
        self.slots: list[Slot] = []

    def slot(self) -> Slot:
        made = Slot(self)
        self.slots.append(made)
        if len(self.slots) == 1:
            made.take()
        return made


class Slot(QWidget):
    """A place of a shared view. Without the view it says so."""

    def __init__(self, shared: SharedView) -> None:
        super().__init__()
        self._shared = shared
        self._elsewhere = centered(ELSEWHERE)
        self._column = vbox((self._elsewhere, 1), of=self)

    @property
    def has_view(self) -> bool:
        return self._shared.view.parentWidget() is self

    def take(self) -> None:
        """Move the view here."""
        if self.has_view:
            return
        self._column.addWidget(self._shared.view, 1)
        self._shared.view.show()
        for slot in self._shared.slots:
            slot._elsewhere.setVisible(slot is not self)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not event.spontaneous():
            self.take()

    def hideEvent(self, event: QHideEvent) -> None:
        """A place that is still shown takes the view."""
        super().hideEvent(event)
        if self.has_view and not event.spontaneous():
            # the window may be going down, with the other places
            others = filter(shiboken6.isValid, self._shared.slots)
            seen = [slot for slot in others if slot is not self and slot.isVisible()]
            for slot in seen[:1]:
                slot.take()
