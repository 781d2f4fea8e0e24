"""The settings dialog: sections at the left, rows at the right, a search over all.

[ search                                       ]
PROGRAM     |  Appearance
Appearance  |  Theme                     (live)
Startup     |  [Dark                         v]
...         |  Light, dark, or the system's.
ENGINE      |
Batching    |
Keyboard    |
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QDialog, QLabel, QLineEdit, QPushButton, QStackedWidget, QWidget

from app.features.preferences.catalog import ENGINE, PROGRAM, all_sections
from app.features.preferences.keyboard_page import KeyboardPage
from app.features.preferences.section_view import KEYBOARD, SectionList, SectionView
from app.features.preferences.sources import EngineSource, ProgramSource
from app.features.tune.engine_settings import EngineSettingsPanel
from app.window.commands import CommandRegistry
from app.window.program_settings import PREFERENCES, Preferences
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import STRETCH, Label, button, dressed, hbox, vbox
from widgets.controls.windows import FittingSize
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4, SPACE_6, theme_notifier

SIZE, LEAST = (880, 640), (640, 420)
WIDEST = 620
"""Maximum width of a row at the default text size."""
RESETTABLE = [name for name, known in PREFERENCES.items() if known.default != ()]
NOTHING_FOUND = "No matching settings."


class SettingsDialog(QDialog):
    """Not modal: changes apply at once. `keys_changed`: the keys of a command changed."""

    keys_changed = Signal()

    def __init__(
        self,
        preferences: Preferences,
        panel: EngineSettingsPanel,
        registry: CommandRegistry,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._panel, self._preferences = panel, preferences
        sources: dict[str, ProgramSource | EngineSource] = {
            PROGRAM: ProgramSource(preferences, self),
            ENGINE: EngineSource(panel, self),
        }
        self.views = [
            SectionView(section, sources[section.group]) for section in all_sections(panel.machine)
        ]
        self.search = dressed(QLineEdit(), "Search settings and commands")
        self.search.setPlaceholderText("Search settings and commands")
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(self._find)
        self.search.installEventFilter(self)
        self.list = SectionList([view.section for view in self.views])
        self.list.currentItemChanged.connect(lambda *_: self._show())
        self.keyboard = KeyboardPage(registry)
        self.keyboard.changed.connect(self.keys_changed)
        self._nothing = dressed(QLabel(NOTHING_FOUND, wordWrap=True), role="muted")
        self._message = dressed(Label(wordWrap=True), role="small")
        tip = "Apply pending changes; rebuilds the KV cache or reloads the model"
        self.apply = button("Apply", panel.commands.apply, tip, "primary")
        tip = "Reset all program settings except the model folders"
        self.reset_all = button("Reset program settings", self._reset_all, tip)
        tip = "Close (Esc). Changes are already saved."
        self.close_button = button("Close", self.close, tip)
        self._arrange()
        for one in self.findChildren(QPushButton):
            one.setAutoDefault(False)  # Enter stays with the field
        panel.actions_changed.connect(self._show_foot)
        preferences.changed.connect(self._show_foot)
        self._at_top_of = ""  # the section last scrolled to its top
        self.list.choose(self.views[0].section.title)
        FittingSize(self, SIZE, LEAST)
        self.search.setFocus()

    def _arrange(self) -> None:
        self._inner = dressed(QWidget(), bare=True)  # lays out its content at full width
        self._fit()
        theme_notifier().changed.connect(self._fit)
        for view in self.views:
            view.hide()
        vbox(self._nothing, *self.views, STRETCH, of=self._inner, spacing=SPACE_6)
        content, margins = dressed(QWidget(), bare=True), (SPACE_4, SPACE_2, SPACE_4, SPACE_4)
        hbox((self._inner, 1000), STRETCH, of=content, margins=margins)
        self.area = dressed(scroll_area(content, "Settings"), "Settings", bare=True)
        self.area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its rows have it
        self.pages = QStackedWidget()
        self.pages.addWidget(self.area)
        self.pages.addWidget(self.keyboard)
        vbox(
            self.search, (hbox(self.list, (self.pages, 1), spacing=SPACE_3), 1),
            hbox(self.reset_all, (self._message, 1), self.apply, self.close_button),
            of=self, spacing=SPACE_3, margins=(SPACE_4, SPACE_4, SPACE_4, SPACE_4),
        )  # fmt: skip

    def _fit(self) -> None:
        self._inner.setMaximumWidth(scaled(WIDEST))

    # What the user does ------------------------------------------------------------------------

    def show_section(self, title: str) -> None:
        self.search.clear()
        self.list.choose(title)

    def show_setting(self, name: str) -> None:
        view = next(v for v in self.views if name in (e.spec.name for e in v.section.entries))
        self.show_section(view.section.title)
        row = view.rows[name]
        for holder in (self._inner, self._inner.parentWidget()):
            if holder is not None and (layout := holder.layout()) is not None:
                layout.activate()  # the row may have been made just now
        self.area.ensureWidgetVisible(row)
        row.take_focus()

    def view(self, title: str) -> SectionView:
        return next(view for view in self.views if view.section.title == title)

    @property
    def shown_names(self) -> list[str]:
        """The settings with visible rows, in order."""
        views = (view for view in self.views if not view.isHidden())
        return [name for view in views for name in view.shown_names]

    def _find(self, text: str) -> None:
        commands = self.keyboard.search(text)
        counts = [len(view.section.found(text)) for view in self.views]
        self.list.show_counts([*counts, commands], bool(text.strip()))
        self._show()

    def _reset_all(self) -> None:
        for name in RESETTABLE:
            self._preferences.reset(name)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Down moves from the search to the sections."""
        is_down = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Down
        if is_down and event.type() == QEvent.Type.KeyPress:
            self.list.setFocus()
            return True
        return False

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.ActivationChange and self.isActiveWindow():
            self._show()  # the panel may have changed values

    # Showing -----------------------------------------------------------------------------------

    def _show(self) -> None:
        """The rows of the selected section; during a search, all that match."""
        chosen, words = self.list.chosen, self.search.text()
        self.pages.setCurrentIndex(int(chosen == KEYBOARD))
        found = 0
        for view in self.views:
            entries = view.section.found(words)
            is_wanted = bool(words.strip()) or view.section.title == chosen
            found += len(entries)
            view.show_entries(entries if is_wanted else ())
        self._nothing.setVisible(not found)
        if words.strip() and chosen != KEYBOARD:
            for view in self.views:
                if view.section.title == chosen and not view.isHidden():
                    self.area.ensureWidgetVisible(view, 0, 0)
        elif not words.strip() and chosen != self._at_top_of:
            self.area.verticalScrollBar().setValue(0)
        self._at_top_of = "" if words.strip() else chosen
        last: QWidget = self.previousInFocusChain() or self
        for one in (self.reset_all, self.apply, self.close_button):  # below rows made just now
            self.setTabOrder(last, one)
            last = one
        self._show_foot()

    def _show_foot(self) -> None:
        group = self.list.group
        self.reset_all.setVisible(group == PROGRAM)
        self.reset_all.setEnabled(any(map(self._preferences.is_changed, RESETTABLE)))
        self.apply.setVisible(bool(self._panel.pending.apply_text))
        self.apply.setText(self._panel.pending.apply_text)
        is_open = self._panel.model.applied is not None
        self._message.setText(
            self._panel.message or ("Settings for the loaded model." if is_open else "")
            if group == ENGINE else ""
        )  # fmt: skip
