"""`ProgressBar`: the done fraction of a job; moving dashes while that is unknown."""

from __future__ import annotations

from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QProgressBar

from widgets.theme.theme import restyle

_PARTS = 1000


class ProgressBar(QProgressBar):
    def __init__(self, name: str = "Progress") -> None:
        """name: for screen readers."""
        super().__init__(textVisible=False)
        self.setAccessibleName(name)
        self._fraction: float | None = 0.0
        self.show_fraction(0.0)

    def show_fraction(self, fraction: float | None) -> None:
        """0 to 1; None: unknown."""
        self._fraction = fraction
        self._show()

    def _show(self) -> None:
        is_moving = self._fraction is None and self.isVisible()
        restyle(self, busy=is_moving)
        self.setRange(0, 0 if is_moving else _PARTS)
        self.setValue(round(_PARTS * (self._fraction or 0.0)))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show()

    def hideEvent(self, event: QHideEvent) -> None:
        """The dashes would animate on, which costs time."""
        super().hideEvent(event)
        self._show()
