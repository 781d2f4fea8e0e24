"""`InspectPage`: each of the engine's views on a full page, chosen by tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QTabBar, QWidget

from widgets.controls.frames import Contained
from widgets.controls.layouts import dressed, stack, vbox
from widgets.controls.text import shortcut_texts, with_keys
from widgets.theme.theme import SPACE_1, SPACE_2, restyle, theme_notifier

_TAB_PADDING = 26  # pixels of a tab beside its text


class Tab(NamedTuple):
    """`name`: the object name of the dock with the same view, where there is one."""

    title: str
    name: str
    content: QWidget


class InspectPage(QWidget):
    """The digits choose a tab where nothing takes them. `titles`: of the tabs, by name.
    `wants_front`: show this page."""

    wants_front = Signal()

    def __init__(self, tabs: Sequence[Tab], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Inspect")
        self.titles = {tab.name: tab.title for tab in tabs}
        self.tabs = dressed(QTabBar(), "Inspect")
        self.tabs.setExpanding(False)
        self.tabs.setUsesScrollButtons(True)
        self.views = stack(*(Contained(tab.content) for tab in tabs))
        self.views.setProperty("bare", True)
        for title in self.titles.values():
            self.tabs.addTab(title)
        shortcut_texts().changed.connect(self._show_keys)
        self.tabs.currentChanged.connect(self.views.setCurrentIndex)
        theme_notifier().changed.connect(self._fit_tabs)
        panel = QFrame()
        panel.setProperty("panel", True)
        vbox(self.tabs, (self.views, 1), of=panel, spacing=SPACE_2,
             margins=(SPACE_1, SPACE_1, SPACE_1, SPACE_1))  # fmt: skip
        vbox((panel, 1), of=self)

    def _show_keys(self) -> None:
        for place, (name, title) in enumerate(self.titles.items()):
            self.tabs.setTabToolTip(place, with_keys(title, f"inspect.{name}"))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_tabs()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        QTimer.singleShot(0, self, self._fit_tabs)  # the style has its fonts by then

    def _fit_tabs(self) -> None:
        """Tabs move together where they would not fit."""
        width = self.tabs.fontMetrics().horizontalAdvance
        texts = sum(width(self.tabs.tabText(i)) + _TAB_PADDING for i in range(self.tabs.count()))
        is_tight = texts > self.width()
        if bool(self.tabs.property("tight")) != is_tight:
            restyle(self.tabs, tight=is_tight)
            self.tabs.setElideMode(self.tabs.elideMode())  # it measures its tabs anew

    @property
    def current(self) -> str:
        return [*self.titles][self.tabs.currentIndex()]

    def open_view(self, name: str) -> None:
        """Bring this page to the front with a tab, by its name."""
        self.wants_front.emit()
        self.show_view(name)

    def show_view(self, name: str) -> bool:
        """Choose a tab by its name, where the page is shown and has it."""
        if name not in self.titles or not self.isVisible():
            return False
        self.tabs.setCurrentIndex([*self.titles].index(name))
        return True

    def keyPressEvent(self, event: QKeyEvent) -> None:
        place = event.key() - Qt.Key.Key_1
        if 0 <= place < self.tabs.count() and not event.modifiers():
            self.tabs.setCurrentIndex(place)
        else:
            super().keyPressEvent(event)
