"""`DockFold`: closes the docks below the page while they would be too low to read."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QDockWidget

from app.window.docks import DockArea
from widgets.theme.fonts import scaled

LEAST_HEIGHT = 210
"""Of docks below the page, in pixels at 100 % text. Lower ones show a few lines, below
charts that are as low."""


class DockFold:
    """A dock that the user opens meanwhile stays open until the others come back."""

    def __init__(self, area: DockArea, settings: QDockWidget) -> None:
        self._area, self._settings = area, settings
        self._unfolded = QByteArray()  # the docks as they come back; empty: nothing is folded

    def state(self) -> QByteArray:
        """The docks as they are with enough room: what is stored."""
        return self._unfolded if self.is_folded else self._area.save()

    @property
    def is_folded(self) -> bool:
        return not self._unfolded.isEmpty()

    def forget(self) -> None:
        """Other docks take the place of these."""
        self._unfolded = QByteArray()

    def fit(self, height: int) -> bool:
        """Fold or unfold for docks of this height, in pixels. Returns whether they came back."""
        has_room = height >= scaled(LEAST_HEIGHT)
        if has_room and self.is_folded:
            is_open = not self._settings.isHidden()
            self._area.restore(self._unfolded)
            self._settings.setVisible(is_open)  # the user may have toggled it since
            self.forget()
            return True
        if not has_room and not self.is_folded and (docks := self._below()):
            self._unfolded = self._area.save()
            for dock in docks:
                dock.hide()
        return False

    def _below(self) -> list[QDockWidget]:
        """Those behind a tab too."""
        place = Qt.DockWidgetArea.BottomDockWidgetArea
        return [
            dock for dock in self._area.docks
            if self._area.dockWidgetArea(dock) is place
            and not dock.isFloating() and not dock.isHidden()
        ]  # fmt: skip
