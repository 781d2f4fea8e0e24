"""`SettingList`: the settings that matter first, the others under Advanced.

    Max running requests …        `ESSENTIAL`
    v Advanced
    Batching                      the sections
    Chunked prefill …
    5 settings do not apply       a click shows them, with the reason
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QWidget

from app.window.setting_specs import ESSENTIAL, Machine, sections
from engine.units import counted
from widgets.controls.layouts import STRETCH, button, dressed, vbox
from widgets.controls.number_control import RowSpec
from widgets.controls.setting_row import SettingRow
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_3, SPACE_4


class SettingList(QScrollArea):
    """All setting rows. `rows`: by setting name. `advanced_toggled`: by the user."""

    chosen = Signal(str, object)  # name, value
    refused = Signal(str, str)  # name, reason
    advanced_toggled = Signal(bool)

    def __init__(self, machine: Machine) -> None:
        super().__init__(widgetResizable=True)
        dressed(self, "Engine settings", bare=True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the rows take the focus
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.rows: dict[str, SettingRow] = {}
        self._unused: set[str] = set()
        self._shows_unused = False
        self._sections: list[tuple[list[QWidget], list[SettingRow]]] = []  # headings, rows
        by_section = sections(machine)
        specs = {spec.name: spec for of_one in by_section.values() for spec in of_one}
        essential = [self._make_row(specs[name]) for name in ESSENTIAL if name in specs]
        self.advanced = button("Advanced", self._on_advanced, kind="flat")
        self.advanced.setCheckable(True)
        self._more = self._make_more(by_section)
        self.unused = button("", self._toggle_unused, kind="link")
        content = dressed(QWidget(), bare=True)
        left, margins = Qt.AlignmentFlag.AlignLeft, (SPACE_3, SPACE_1, SPACE_3, SPACE_3)
        vbox(
            *essential, line(), (self.advanced, 0, left), self._more, (self.unused, 0, left),
            STRETCH, of=content, spacing=SPACE_3, margins=margins,
        )  # fmt: skip
        self.setWidget(content)
        self.set_advanced(False)
        self._show_unused()

    def _make_row(self, spec: RowSpec) -> SettingRow:
        row = self.rows[spec.name] = SettingRow(spec)
        row.value_changed.connect(self.chosen)
        row.refused.connect(self.refused)
        return row

    def _make_more(self, by_section: Mapping[str, list[RowSpec]]) -> QWidget:
        parts: list[QWidget] = []
        for title, specs in by_section.items():
            others = [spec for spec in specs if spec.name not in ESSENTIAL]
            if not others:
                continue
            title_label = dressed(QLabel(title), role="small")
            heads: list[QWidget] = [line(), title_label] if parts else [title_label]
            rows = [self._make_row(spec) for spec in others]
            self._sections.append((heads, rows))
            parts += [*heads, *rows]
        made = dressed(QWidget(), bare=True)
        vbox(*parts, of=made, spacing=SPACE_3)
        return made

    # Advanced -----------------------------------------------------------------------------------

    def set_advanced(self, on: bool) -> None:
        self.advanced.setChecked(on)
        self._more.setVisible(on)
        set_icon(self.advanced, "chevron-down" if on else "chevron-right")

    def _on_advanced(self) -> None:
        self.set_advanced(self.advanced.isChecked())
        self.advanced_toggled.emit(self.advanced.isChecked())

    def reveal(self, name: str) -> None:
        """Unfold what hides the row of `name`, scroll to it and focus it."""
        row = self.rows[name]
        if name not in ESSENTIAL:
            self.set_advanced(True)
        if name in self._unused:
            self._shows_unused = True
            self._show_unused()
        row.take_focus()
        # rows that were hidden have their places by then
        QTimer.singleShot(0, self, lambda: self.ensureWidgetVisible(row, 0, SPACE_4))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The focused row stays in sight when the pending changes need room."""
        super().resizeEvent(event)
        focused, before = self.focusWidget(), event.oldSize().height()
        for row in self.rows.values():
            is_focused = focused is not None and row.isAncestorOf(focused)
            if is_focused and 0 <= row.mapTo(self, QPoint()).y() < before:
                self.ensureWidgetVisible(row, 0, SPACE_4)

    # Settings without effect ----------------------------------------------------------------------

    def set_unused(self, names: set[str]) -> None:
        """The settings that have no effect now: hidden until the user asks for them."""
        if names != self._unused:
            self._unused = names
            self._show_unused()

    def _toggle_unused(self) -> None:
        self._shows_unused = not self._shows_unused
        if self._shows_unused and not self.advanced.isChecked():
            self.set_advanced(True)
            self.advanced_toggled.emit(True)
        self._show_unused()

    def _show_unused(self) -> None:
        for name, row in self.rows.items():
            row.setHidden(name in self._unused and not self._shows_unused)
        for heads, rows in self._sections:
            for head in heads:
                head.setHidden(all(row.isHidden() for row in rows))
        count = len(self._unused)
        verb = "does" if count == 1 else "do"
        words = f"{counted(count, 'setting')} {verb} not apply"
        self.unused.setText("Hide settings that do not apply" if self._shows_unused else words)
        self.unused.setVisible(bool(count))


def line() -> QFrame:
    """A separator."""
    return dressed(QFrame(), line=True)
