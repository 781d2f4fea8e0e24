"""The main window: arranges its parts, and keeps its size and docks between runs.

+------+---------------------------------------+
| rail | figures, loading                      |
|      +-------------------------+-------------+
|      | notices, work           | engine      |
|      | page                    | settings    |
|      +-------------------------+             |
|      | live charts             |             |
+------+-------------------------+-------------+
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QKeyEvent
from PySide6.QtWidgets import QDialog, QMainWindow, QPushButton, QToolButton, QWidget

from app.features.preferences.controller import SETTING, SettingsController
from app.window.commands import Command, CommandRegistry
from app.window.dock_layouts import DockLayouts
from app.window.docks import DockArea, DockPlan, Page, PanelDock, is_on_a_screen
from app.window.help_dialogs import AboutDialog, ShortcutsDialog
from app.window.nav_rail import NavRail
from app.window.notifications import NAME, Bell, NoticeHistory, NoticePopover
from app.window.settings_store import SettingsStore
from widgets.controls.frames import Contained
from widgets.controls.layouts import hbox, stack, vbox
from widgets.palette.palette import Palette
from widgets.theme.theme import SPACE_2

MINIMUM_SIZE = (880, 620)
FIRST_SIZE = (1600, 1000)
PAGE = "window/page"
"""Stored: the name of the page shown last."""
TITLE_BAR = 40
"""Pixels of the screen's height left for the desktop's title bar."""
NOTICES = "view.notifications"
PAGE_SIZE = (440, 330)
"""Minimum size of the page: docks shrink first."""


def first_size(available: QSize) -> QSize:
    """Size of the first window for the available screen area; its frame appears with `show`."""
    return QSize(*FIRST_SIZE).boundedTo(available - QSize(0, TITLE_BAR))


class MainWindow(QMainWindow):
    """Pages in the middle, docks around them, a rail at the left. `closing`: emitted when every
    page agreed."""

    closing = Signal()
    model_dropped = Signal(str)  # path
    _focused: QWidget | None = None  # when the key that comes now was pressed

    def __init__(
        self,
        settings: SettingsStore,
        pages: Sequence[Page],
        docks: Sequence[tuple[PanelDock, str]],
        plan: Callable[[Page], DockPlan],
        history: NoticeHistory,
        header: Sequence[QWidget],
        over_page: Sequence[QWidget],
    ) -> None:
        """`docks`: each with its shortcut, the engine settings first. `plan`: positions at the
        first visit of a page. `header`: side by side at the top, where one that comes or goes moves
        nothing below; `over_page`: between the header and the page."""
        super().__init__()
        self.settings, self.pages = settings, list(pages)
        self.dock_shortcuts = tuple(docks)
        self.setWindowTitle("Inferdeck")
        self.setMinimumSize(*MINIMUM_SIZE)
        self.setAcceptDrops(True)
        self.commands = CommandRegistry(self, settings.keymap)
        self.rail = self._make_rail(history)
        self.stack = stack(*(page.widget for page in self.pages))
        self._arrange(header, over_page)
        settings_dock, *others = (dock for dock, _ in docks)
        by_name = {page.name: page for page in self.pages}
        self.docks = DockLayouts(
            self.dock_area, settings_dock, others, list(by_name), settings,
            lambda name: plan(by_name[name]),
        )  # fmt: skip
        self.dock_area.take((settings_dock, *others))
        for page in self.pages:
            for changed in page.changed:
                changed.connect(partial(self.commands.refresh, page.commands))

    def _make_rail(self, history: NoticeHistory) -> NavRail:
        rail = NavRail()
        for page in self.pages:
            rail.add_page(page.name, page.icon)
        rail.page_chosen.connect(self.show_page)
        run = self.commands.run
        bell = rail.add_action(
            NAME, "bell", "Errors and finished jobs in this session", NOTICES, run
        )
        Bell(bell, history)
        self._bell, self.notifications = bell, NoticePopover(history, self)
        rail.add_action("Settings", "settings", "Settings", "app.settings", run)
        rail.choose(0)
        return rail

    def _arrange(self, header: Sequence[QWidget], over_page: Sequence[QWidget]) -> None:
        self.stack.setMinimumSize(*PAGE_SIZE)
        middle, whole = QWidget(), QWidget()
        vbox(*over_page, (Contained(self.stack), 1), of=middle)
        self.dock_area = DockArea(middle)
        right = vbox(hbox(*((part, 1) for part in header)), (self.dock_area, 1))
        hbox(self.rail, (right, 1), of=whole, margins=(SPACE_2, 0, SPACE_2, SPACE_2))
        self.setCentralWidget(whole)

    # Pages -------------------------------------------------------------------------------------

    def page_commands(self) -> list[Command]:
        """The commands of the pages; some show their page first."""

        def shown(index: int, callback: Callable[[], object]) -> None:
            self.show_page(index)
            callback()

        return [
            replace(one, callback=partial(shown, index, one.callback)) if one.shows_page else one
            for index, page in enumerate(self.pages)
            for one in page.commands
        ]

    @property
    def page_index(self) -> int:
        return self.stack.currentIndex()

    @property
    def page(self) -> Page:
        return self.pages[self.page_index]

    def show_page(self, index: int) -> None:
        """Show a page with its docks."""
        if index != self.page_index:
            self.stack.setCurrentIndex(index)
            self.docks.show_page(self.page.name)
        self.rail.choose(index)

    def show_widget(self, widget: QWidget) -> None:
        self.show_page(self.stack.indexOf(widget))

    def show_page_named(self, name: str) -> None:
        """Show a page by its name; an unknown name changes nothing."""
        names = [page.name for page in self.pages]
        if name in names:
            self.show_page(names.index(name))

    def show_notifications(self) -> None:
        """Open the list of notifications at the bell, or close it."""
        self.notifications.toggle_at(self._bell)

    # The window itself -------------------------------------------------------------------------

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride:  # comes before each key
            self._focused = self.focusWidget()
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter presses the focused button, as Space does: Qt does so in dialogs alone. Not one
        to which the focus went by this key, as from a list that it closes."""
        focused, self._focused = self._focused, None
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        is_same = focused is self.focusWidget()
        if is_enter and is_same and isinstance(focused, QPushButton | QToolButton):
            if not event.isAutoRepeat():
                focused.click()
            return
        super().keyPressEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped_path(event):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        path = dropped_path(event)
        if path:
            event.acceptProposedAction()
            self.model_dropped.emit(path)

    def restore(self) -> None:
        """Restore size and docks of the last run, on a connected screen."""
        available = self.screen().availableSize()
        self.resize(first_size(available))
        self.restoreGeometry(self.settings.geometry)
        if not is_on_a_screen(self):
            self.move(self.screen().availableGeometry().topLeft())
            self.resize(self.size().boundedTo(available))
        self.show_page_named(self.settings.text(PAGE, ""))
        self.docks.restore()

    def closeEvent(self, event: QCloseEvent) -> None:
        if not all(page.may_close(self) for page in self.pages):
            event.ignore()
            return
        self.settings.geometry = self.saveGeometry()
        self.settings.set_text(PAGE, self.page.name)
        self.docks.keep()
        self.settings.sync()
        self.closing.emit()
        event.accept()


def dropped_path(event: QDropEvent) -> str:
    """The dragged local folder or file; empty unless there is exactly one."""
    urls = event.mimeData().urls()
    return urls[0].toLocalFile() if len(urls) == 1 and urls[0].isLocalFile() else ""


PALETTE = "help.palette"


class Dialogs(QObject):
    """Opens palette, shortcuts and About over `window`."""

    def __init__(self, window: MainWindow, preferences: SettingsController) -> None:
        super().__init__(window)
        self._window, self._preferences = window, preferences
        self.palette = Palette(window)
        self.palette.chosen.connect(self._on_chosen)

    def show_palette(self) -> None:
        """Search commands and settings."""
        commands = (e for e in self._window.commands.entries() if e.id != PALETTE)
        self.palette.open(commands, self._preferences.entries())

    def show_shortcuts(self) -> None:
        self._open(ShortcutsDialog(self._window.commands))

    def show_about(self) -> None:
        self._open(AboutDialog())

    def _open(self, dialog: QDialog) -> None:
        dialog.setParent(self._window, dialog.windowFlags())
        dialog.open()

    def _on_chosen(self, chosen: str) -> None:
        if chosen.startswith(SETTING):
            self._preferences.show_setting(chosen.removeprefix(SETTING))
        else:
            self._window.commands.run(chosen)
