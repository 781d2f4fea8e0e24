"""Rows of a section, and the list of sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QSizePolicy, QWidget

from app.features.preferences.catalog import Entry, Section
from app.features.preferences.sources import EngineSource, ProgramSource
from widgets.controls.layouts import label, vbox
from widgets.controls.number_control import NumberControl
from widgets.controls.paths import PathControl
from widgets.controls.setting_row import SettingRow
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_4, theme, theme_notifier, ui_font

DELAY_MS = 250
"""Debounces sliders."""


class SectionView(QWidget):
    """A heading and the rows of the matching entries, made when first shown."""

    def __init__(self, section: Section, source: ProgramSource | EngineSource) -> None:
        super().__init__()
        self.section, self._source = section, source
        self.rows: dict[str, SettingRow] = {}
        self._about = {entry.spec.name: entry.about for entry in section.entries}
        self._pending: dict[str, Any] = {}
        self._delay = QTimer(self, singleShot=True, interval=DELAY_MS)
        self._delay.timeout.connect(self._send)
        self._column = vbox(label(section.title, "title"), of=self, spacing=SPACE_4)
        source.changed.connect(self.renew)

    def show_entries(self, entries: Iterable[Entry]) -> None:
        """Show the rows of these entries only; hide the section if there are none."""
        wanted = {entry.spec.name for entry in entries}
        self.setVisible(bool(wanted))
        for place, entry in enumerate(self.section.entries):
            name = entry.spec.name
            if name in wanted and name not in self.rows:
                self._make_row(place, entry)
            if name in self.rows:
                self.rows[name].setVisible(name in wanted)
        self.renew()

    @property
    def shown_names(self) -> list[str]:
        """The settings with visible rows, in order."""
        names = (entry.spec.name for entry in self.section.entries)
        return [n for n in names if n in self.rows and not self.rows[n].isHidden()]

    def renew(self) -> None:
        if self.isHidden():
            return
        for name, row in self.rows.items():
            state = self._source.state(name)
            self._source.dress(row)
            if name not in self._pending:
                row.set_value(state.value)
            row.setEnabled(state.is_enabled)
            row.show_default(state.default)
            row.set_hint(state.remark or self._about[name], state.tone)

    def _make_row(self, place: int, entry: Entry) -> None:
        row = SettingRow(entry.spec)
        row.value_changed.connect(self._on_chosen)
        row.refused.connect(self._on_refused)
        row.reset_wanted.connect(self._source.reset)
        if isinstance(row.control, PathControl) and isinstance(self._source, EngineSource):
            browse, name = self._source.browse, entry.spec.name
            row.control.browse_wanted.connect(lambda: browse(name))
        before = sum(1 for e in self.section.entries[:place] if e.spec.name in self.rows)
        self._column.insertWidget(1 + before, row)
        self.rows[entry.spec.name] = row

    def _on_chosen(self, name: str, value: Any) -> None:
        if isinstance(self.rows[name].control, NumberControl):
            self._pending[name] = value
            self._delay.start()
        else:
            self._source.choose(name, value)

    def _on_refused(self, name: str, why: str) -> None:
        """Values chosen before are applied first: that would remove the reason."""
        self._delay.stop()
        self._send()
        self._source.refuse(name, why)

    def _send(self) -> None:
        pending, self._pending = self._pending, {}
        for name, value in pending.items():
            self._source.choose(name, value)

    def hideEvent(self, event: object) -> None:
        """Send a pending value before the dialog closes."""
        self._delay.stop()
        self._send()


KEYBOARD = "Keyboard"
LIST_WIDTH = 192
SECTION = Qt.ItemDataRole.UserRole


class SectionList(QListWidget):
    """Sections under the headings of their groups; during a search with the number of matches."""

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
        self._items[-1].setToolTip("Keyboard shortcuts for all commands")
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
        self.scheduleDelayedItemsLayout()  # rows are measured before their style applies

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
        """The group of the selected section; "" for the keyboard."""
        return self._groups.get(self.chosen, "")

    def choose(self, title: str) -> None:
        for item in self._items:
            if item.data(SECTION) == title:
                self.setCurrentItem(item)

    def show_counts(self, counts: list[int], searching: bool) -> None:
        """Show the number of matches per section; select one that has some."""
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
