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
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.features.preferences.catalog import ENGINE, PROGRAM, all_sections
from app.features.preferences.keyboard_page import KeyboardPage
from app.features.preferences.section_view import KEYBOARD, SectionList, SectionView
from app.features.preferences.sources import EngineSource, ProgramSource
from app.features.tune.engine_settings import EngineSettingsPanel
from app.window.commands import CommandRegistry
from app.window.program_settings import PREFERENCES, Preferences
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4, SPACE_6, restyle, theme_notifier

SIZE, LEAST = (880, 640), (640, 420)
WIDEST = 620
"""Maximum width of a row at the default text size."""
RESETTABLE = [name for name, known in PREFERENCES.items() if known.default != ()]
NOTHING_FOUND = "No matching setting."


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
        self.setMinimumSize(*LEAST)
        self._panel, self._preferences = panel, preferences
        sources: dict[str, ProgramSource | EngineSource] = {
            PROGRAM: ProgramSource(preferences, self),
            ENGINE: EngineSource(panel, self),
        }
        self.views = [
            SectionView(section, sources[section.group]) for section in all_sections(panel.machine)
        ]
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search settings and commands")
        self.search.setAccessibleName("Search settings and commands")
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(self._find)
        self.search.installEventFilter(self)
        self.list = SectionList([view.section for view in self.views])
        self.list.currentItemChanged.connect(lambda *_: self._show())
        self.keyboard = KeyboardPage(registry)
        self.keyboard.changed.connect(self.keys_changed)
        self._nothing = QLabel(NOTHING_FOUND)
        self._nothing.setWordWrap(True)
        self._nothing.setProperty("role", "muted")
        self._message = QLabel()
        self._message.setWordWrap(True)
        self._message.setProperty("role", "small")
        self.apply = _button("Apply", "Apply changes that rebuild the KV cache or reload the model")
        restyle(self.apply, kind="primary")
        self.apply.clicked.connect(panel.commands.apply)
        self.reset_all = _button(
            "Reset program settings", "Reset every program setting; model folders stay"
        )
        self.reset_all.clicked.connect(self._reset_all)
        self.close_button = _button("Close", "Close (Esc). Changes are already saved.")
        self.close_button.clicked.connect(self.close)
        self._arrange()
        panel.actions_changed.connect(self._show_foot)
        preferences.changed.connect(self._show_foot)
        self._at_top_of = ""  # the section last scrolled to its top
        self.list.choose(self.views[0].section.title)
        self.resize(*map(scaled, SIZE))
        self.search.setFocus()

    def _arrange(self) -> None:
        content = QWidget()
        content.setProperty("bare", True)
        inner = QWidget()  # a column lays out its content at full width
        inner.setProperty("bare", True)
        self._inner = inner
        self._fit()
        theme_notifier().changed.connect(self._fit)
        across = QHBoxLayout(content)
        across.setContentsMargins(SPACE_4, SPACE_2, SPACE_4, SPACE_4)
        across.addWidget(inner, 1000)
        across.addStretch(1)
        rows = QVBoxLayout(inner)
        rows.setContentsMargins(0, 0, 0, 0)
        rows.setSpacing(SPACE_6)
        rows.addWidget(self._nothing)
        for view in self.views:
            view.hide()
            rows.addWidget(view)
        rows.addStretch(1)
        self.area = QScrollArea()
        self.area.setProperty("bare", True)
        self.area.setAccessibleName("Settings")
        self.area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its rows have it
        self.area.setWidgetResizable(True)
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.area.setWidget(content)
        self.pages = QStackedWidget()
        self.pages.addWidget(self.area)
        self.pages.addWidget(self.keyboard)
        middle = QHBoxLayout()
        middle.setSpacing(SPACE_3)
        middle.addWidget(self.list)
        middle.addWidget(self.pages, 1)
        foot = QHBoxLayout()
        foot.setSpacing(SPACE_2)
        foot.addWidget(self.reset_all)
        foot.addWidget(self._message, 1)
        foot.addWidget(self.apply)
        foot.addWidget(self.close_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_3)
        column.addWidget(self.search)
        column.addLayout(middle, 1)
        column.addLayout(foot)

    def _fit(self) -> None:
        self._inner.setMaximumWidth(scaled(WIDEST))

    # What the user does ------------------------------------------------------------------------

    def show_section(self, title: str) -> None:
        """Show a section."""
        self.search.clear()
        self.list.choose(title)

    def show_setting(self, name: str) -> None:
        """Show and focus the row of a setting."""
        view = next(v for v in self.views if name in (e.spec.name for e in v.section.entries))
        self.show_section(view.section.title)
        row = view.rows[name]
        inner = view.parentWidget()
        layouts = [w.layout() for w in (inner, self.area.widget()) if w is not None]
        for layout in layouts:
            if layout is not None:
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
        self._show_foot()

    def _show_foot(self) -> None:
        group = self.list.group
        is_engine = group == ENGINE
        self.reset_all.setVisible(group == PROGRAM)
        self.reset_all.setEnabled(any(map(self._preferences.is_changed, RESETTABLE)))
        self.apply.setVisible(bool(self._panel.apply_text))
        self.apply.setText(self._panel.apply_text)
        is_open = self._panel.model.applied is not None
        self._message.setText(
            self._panel.message or ("Settings of the open model." if is_open else "")
            if is_engine else ""
        )  # fmt: skip


def _button(text: str, tip: str) -> QPushButton:
    button = QPushButton(text)
    button.setToolTip(tip)
    button.setAutoDefault(False)
    return button
