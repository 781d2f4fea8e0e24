"""The list of sections at the left of the settings dialog."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QSizePolicy

from app.preferences.catalog import Section
from widgets.fonts import scaled
from widgets.theme import theme, theme_notifier, ui_font

KEYBOARD = "Keyboard"
LIST_WIDTH = 192
SECTION = Qt.ItemDataRole.UserRole


class SectionList(QListWidget):
    """The sections under the headings of their groups; while something is searched, how much each
    has of it."""

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__()
        self.setAccessibleName("Sections")
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        self._groups = {section.title: section.group for section in sections}
        self._items: list[QListWidgetItem] = []
        self._headings: list[QListWidgetItem] = []
        for group, members in groupby(sections, lambda section: section.group):
            self._add_heading(group)
            for section in members:
                self._add(section.title)
        self._add_heading("Commands")
        self._add(KEYBOARD)
        self._items[-1].setToolTip("The keys of every command")
        self._take_look()
        theme_notifier().changed.connect(self._take_look)

    def _take_look(self) -> None:
        self.setFixedWidth(scaled(LIST_WIDTH))
        for heading in self._headings:
            heading.setFont(ui_font("small"))
            heading.setForeground(theme().color("text_muted"))
        self.scheduleDelayedItemsLayout()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.scheduleDelayedItemsLayout()  # rows were measured before they had their style

    def _add_heading(self, text: str) -> None:
        heading = QListWidgetItem(text, self)
        heading.setFlags(Qt.ItemFlag.NoItemFlags)
        self._headings.append(heading)

    def _add(self, title: str) -> None:
        item = QListWidgetItem(title, self)
        item.setData(SECTION, title)
        self._items.append(item)

    @property
    def chosen(self) -> str:
        item = self.currentItem()
        return str(item.data(SECTION) or "") if item is not None else ""

    @property
    def group(self) -> str:
        """Whose settings the chosen section has; "" for the keyboard."""
        return self._groups.get(self.chosen, "")

    def choose(self, title: str) -> None:
        for item in self._items:
            if item.data(SECTION) == title:
                self.setCurrentItem(item)

    def show_counts(self, counts: list[int], searching: bool) -> None:
        """How many entries of each section were found; go where there are some."""
        for item, count in zip(self._items, counts, strict=True):
            title = item.data(SECTION)
            item.setText(f"{title}  {count}" if searching and count else title)
            item.setHidden(searching and not count)
        for heading in self._headings:
            heading.setHidden(searching)
        current = self.currentItem()
        if searching and (current is None or current.isHidden()):
            first = next((item for item in self._items if not item.isHidden()), None)
            if first is not None:
                self.setCurrentItem(first)
