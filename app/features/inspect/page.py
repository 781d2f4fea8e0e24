"""`InspectPage`: each of the engine's views on a full page, chosen by tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QFrame, QTabBar, QWidget

from widgets.controls.frames import Contained
from widgets.controls.layouts import dressed, stack, vbox
from widgets.theme.theme import SPACE_1, SPACE_2


class Tab(NamedTuple):
    """`name`: the object name of the dock with the same view, where there is one."""

    title: str
    name: str
    content: QWidget


class InspectPage(QWidget):
    """Alt+1 to Alt+9 choose a tab; so do the digits alone where nothing takes them."""

    def __init__(self, tabs: Sequence[Tab], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Inspect")
        self._names = [tab.name for tab in tabs]
        self.tabs = dressed(QTabBar(), "Inspect")
        self.tabs.setExpanding(False)
        self.tabs.setUsesScrollButtons(True)
        self.views = stack(*(Contained(tab.content) for tab in tabs))
        self.views.setProperty("bare", True)
        for place, tab in enumerate(tabs):
            self.tabs.addTab(tab.title)
            self.tabs.setTabToolTip(place, f"{tab.title} (Alt+{place + 1})")
            key = QShortcut(QKeySequence(f"Alt+{place + 1}"), self)
            key.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            key.activated.connect(lambda place=place: self.tabs.setCurrentIndex(place))
        self.tabs.currentChanged.connect(self.views.setCurrentIndex)
        panel = QFrame()
        panel.setProperty("panel", True)
        vbox(self.tabs, (self.views, 1), of=panel, spacing=SPACE_2,
             margins=(SPACE_1, SPACE_1, SPACE_1, SPACE_1))  # fmt: skip
        vbox((panel, 1), of=self)

    @property
    def current(self) -> str:
        return self._names[self.tabs.currentIndex()]

    def show_view(self, name: str) -> bool:
        """Choose a tab by its name, where the page is shown and has it."""
        if name not in self._names or not self.isVisible():
            return False
        self.tabs.setCurrentIndex(self._names.index(name))
        return True

    def keyPressEvent(self, event: QKeyEvent) -> None:
        place = event.key() - Qt.Key.Key_1
        if 0 <= place < self.tabs.count() and not event.modifiers():
            self.tabs.setCurrentIndex(place)
        else:
            super().keyPressEvent(event)
