"""The window: page rail, figures on top, the page, engine settings and charts around it.

+------+---------------------------------------+
| rail | figures                               |
|      +-------------------------+-------------+
|      | notices, loading, work  | engine      |
|      | page                    | settings    |
|      +-------------------------+             |
|      | live charts             |             |
+------+-------------------------+-------------+
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QMainWindow,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.features.compare.commands import BroadcastManager, CompareManager
from app.features.inspect.engine_views import EngineViews
from app.features.inspect.log_view import LogPanel
from app.features.models.dialog import OpenModelDialog, dropped_path, show_dialog
from app.features.models.precision import QUANTIZE
from app.features.models.session import ModelSession, RecentMenu
from app.features.preferences.desk import SETTING, SettingsDesk
from app.features.recording.commands import FlightDesk
from app.features.recording.recorder import FlightRecorder
from app.features.tune.draft_models import METHOD
from app.features.tune.engine_settings import EngineSettingsPanel
from app.features.tune.setting_specs import Machine
from app.link.bridge import EngineBridge
from app.log import LogKeeper
from app.main.commands import PALETTE, window_commands
from app.main.engine_status import EngineNews, LinkNews
from app.window.commands import Command, CommandRegistry
from app.window.dock_keeper import DockKeeper
from app.window.docks import (
    DEFAULT_DOCKS,
    CardDock,
    DockArea,
    DockPlan,
    Page,
    PanelDock,
    is_on_a_screen,
)
from app.window.help_dialogs import AboutDialog, ShortcutsDialog
from app.window.layout_commands import LayoutDesk
from app.window.layouts import LayoutStore, plan_of
from app.window.nav_rail import NavRail
from app.window.notices import Notice, NoticeArea
from app.window.notification_history import NoticeHistory
from app.window.notification_panel import NAME, Bell, NoticePanel
from app.window.progress import LoadStrip, WorkArea
from app.window.settings_store import SettingsStore, ThemeMode
from widgets.controls.frames import Contained
from widgets.live.charts import LiveCharts
from widgets.live.strip import StatStrip
from widgets.palette.palette import Palette
from widgets.plot.clock import RedrawClock
from widgets.plot.marks import MarkLog
from widgets.theme.theme import SPACE_2

MINIMUM_SIZE = (880, 620)
FIRST_SIZE = (1600, 1000)
TITLE_BAR = 40
"""Pixels of the screen's height left for what the desktop puts above a window."""
QUANTIZE_PAGE = "Quantize"
PAGE_SIZE = (440, 330)
"""Least size of the page: docks give way to it."""


def first_size(available: QSize) -> QSize:
    """Of the first window on a screen that has so much room. A frame comes around it only when it
    is shown."""
    return QSize(*FIRST_SIZE).boundedTo(available - QSize(0, TITLE_BAR))


class MainWindow(QMainWindow):
    """`charts_held`: live charts, here and on the pages, are to stand still or to move on."""

    closing = Signal()
    charts_held = Signal(bool)

    def __init__(
        self,
        bridge: EngineBridge,
        settings: SettingsStore,
        session: ModelSession,
        pages: Iterable[Page],
        machine: Machine | None = None,
        clock: RedrawClock | None = None,
        marks: MarkLog | None = None,
        log: LogKeeper | None = None,
    ) -> None:
        super().__init__()
        self.bridge, self.settings, self.session = bridge, settings, session
        self.pages = list(pages)
        self.charts_paused = False
        self._dialog: OpenModelDialog | None = None
        self.setWindowTitle("Inferdeck")
        self.setMinimumSize(*MINIMUM_SIZE)
        self.setAcceptDrops(True)
        # one clock for all: what is drawn, is drawn together
        self._make_parts(machine, clock or RedrawClock(parent=self), marks, log)
        self.layouts = LayoutDesk(
            LayoutStore(settings.path.with_name("layouts.json")), settings,
            lambda: self.page.name, self._show_page_named, self,
        )  # fmt: skip
        self._arrange()
        self.recorder = FlightRecorder(bridge, self)
        self.flight = FlightDesk(self.recorder, self)
        self.commands = CommandRegistry(self, settings.keymap)
        self.commands.add(*self._page_commands())
        precision = self.engine_settings.precision
        self.compare = CompareManager(bridge, precision, self, session, settings)
        self.broadcast = BroadcastManager(bridge, self)
        self.commands.add(
            *window_commands(self), *self.flight.commands(), *self.compare.commands(),
            *self.broadcast.commands(),
        )  # fmt: skip
        self.preferences = SettingsDesk(
            settings.preferences, self.engine_settings, self.commands, self
        )
        self.commands.add(*self.preferences.commands())
        self.layouts.start(self.docks, self.commands)
        self.command_palette = Palette(self)
        self.command_palette.chosen.connect(self._on_palette)
        self._recent_menu = RecentMenu(settings, self.session, self)
        self.commands.fill(self.menuBar(), {"File": [self._recent_menu]})
        self._connect()
        self._restore()
        for key, kept in (
            ("settings", settings), ("profile", settings.profiles), ("shortcuts", settings.keymap),
            ("layout", self.layouts.store),
        ):  # fmt: skip
            if kept.problem:
                self.show_notice(Notice(key, kept.problem, kind="warning"))

    # Building ----------------------------------------------------------------------------------

    def _make_parts(
        self,
        machine: Machine | None,
        clock: RedrawClock,
        marks: MarkLog | None,
        log: LogKeeper | None,
    ) -> None:
        self.notices = NoticeArea()
        self.history = NoticeHistory(self)
        self.notices.shown.connect(self.history.add)
        self.rail = NavRail()
        self.stack = QStackedWidget()
        for page in self.pages:
            self.rail.add_page(page.name, page.icon)
            self.stack.addWidget(page.widget)
        self.rail.add_action("Open", "folder", "Open a model", "model.open", self.show_open_model)
        bell = self.rail.add_action(
            NAME, "bell", "Errors and finished work of this run", "dock.notifications",
            self._show_history,
        )  # fmt: skip
        Bell(bell, self.history)
        self.rail.add_action(
            "Settings", "settings", "Settings", "app.settings", lambda: self.preferences.show()
        )
        self.rail.choose(0)
        self.strip = StatStrip(clock)
        self.load_strip = LoadStrip()
        self.work = WorkArea()
        self.engine_settings = EngineSettingsPanel(
            self.bridge,
            self.settings.profiles,
            machine,
            recent=lambda: [(m.path, m.load_format, m.title) for m in self.settings.recent],
            times=self.settings,
        )
        self.engine_settings.precision.can_quantize = self._page_named(QUANTIZE_PAGE) is not None
        self.charts = LiveCharts(clock, marks)
        self.views = EngineViews(self.bridge, clock, self)
        self.views.speculation.settings_wanted.connect(partial(self.show_setting, METHOD))
        self.log = LogPanel(log or LogKeeper())

    def _arrange(self) -> None:
        middle = QWidget()
        self.stack.setMinimumSize(*PAGE_SIZE)
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addWidget(self.notices)
        column.addWidget(self.load_strip)
        column.addWidget(self.work)
        column.addWidget(Contained(self.stack), 1)
        self.dock_area = DockArea(middle)
        self.settings_dock = CardDock("Engine settings", "engine-settings", self.engine_settings)
        self.charts_dock = PanelDock("Live charts", "live-charts", self.charts)
        self.log_dock = CardDock("Log", "log", self.log)
        notices = NoticePanel(self.history)
        self.history_dock = CardDock("Notifications", "notifications", notices)
        self.history_dock.visibilityChanged.connect(notices.look)
        for dock, _ in self.dock_shortcuts():
            # what was behind another tab was not drawn
            dock.visibilityChanged.connect(self.charts.clock.wake)
        others = [dock for dock, _ in self.dock_shortcuts() if dock is not self.settings_dock]
        self.docks = DockKeeper(
            self.dock_area, self.settings_dock, others, [page.name for page in self.pages],
            self.settings, self._plan,
        )  # fmt: skip
        self.dock_area.take((self.settings_dock, *others))
        right = QVBoxLayout()
        right.setSpacing(SPACE_2)
        right.addWidget(self.strip)
        right.addWidget(self.dock_area, 1)
        whole = QWidget()
        row = QHBoxLayout(whole)
        row.setContentsMargins(SPACE_2, 0, SPACE_2, SPACE_2)
        row.setSpacing(SPACE_2)
        row.addWidget(self.rail)
        row.addLayout(right, 1)
        self.setCentralWidget(whole)

    def _connect(self) -> None:
        self.rail.page_chosen.connect(self.show_page)
        self.load_strip.cancelled.connect(self.bridge.cancel_load)
        self.session.opened.connect(self.engine_settings.show_model)
        self.session.notice.connect(self.notices.show_notice)
        self.session.notice_gone.connect(self.notices.dismiss)
        self.session.notice_gone.connect(self.history.end)
        self.views.bottleneck.accounted.connect(self.engine_settings.show_ceilings)
        self.views.bottleneck.applied.connect(self.engine_settings.change)
        self.views.bottleneck.set_refuse(self.engine_settings.refusal_of)
        self.flight.notice.connect(self.notices.show_notice)
        self.layouts.notice.connect(self.notices.show_notice)
        self.session.wants_dialog.connect(self.show_open_model)
        self.engine_settings.changed.connect(self._on_settings_changed)
        self.engine_settings.notice.connect(self.notices.show_notice)
        self.engine_settings.precision.way_out.connect(self._show_way_out)
        self.engine_settings.actions_changed.connect(self.commands.refresh)
        self.news = EngineNews(self)
        self.link_news = LinkNews(self)
        for changed in (signal for page in self.pages for signal in page.changed):
            changed.connect(self.commands.refresh)

    # Commands ----------------------------------------------------------------------------------

    def _page_commands(self) -> list[Command]:
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
        """The page that is shown."""
        return self.pages[self.page_index]

    def show_page(self, index: int) -> None:
        """Show a page, and the docks where they were on it."""
        if index != self.page_index:
            self.stack.setCurrentIndex(index)
            self.docks.show_page(self.page.name)
        self.rail.choose(index)

    def show_widget(self, widget: QWidget) -> None:
        """Show the page that `widget` is."""
        self.show_page(self.stack.indexOf(widget))

    def _show_page_named(self, name: str) -> None:
        index = self._page_named(name)
        if index is not None:
            self.show_page(index)

    def _plan(self, page: str) -> DockPlan:
        """Where the docks of a page are at first, in the layout that is in force."""
        first = next((known.docks for known in self.pages if known.name == page), DEFAULT_DOCKS)
        return plan_of(self.layouts.current.base, page, first)

    def _page_named(self, name: str) -> int | None:
        return next((i for i, page in enumerate(self.pages) if page.name == name), None)

    def _show_way_out(self, kind: str) -> None:
        """Where a precision comes from that the loaded checkpoint does not have."""
        index = self._page_named(QUANTIZE_PAGE)
        if kind == QUANTIZE and index is not None:
            self.show_page(index)
        else:
            self.show_open_model()

    def show_open_model(self, path: str = "") -> None:
        """The dialog, looking at `path` if one is given."""
        if self._dialog is None:
            self._dialog = OpenModelDialog(
                self.settings, lambda: self.bridge.gives_back, parent=self
            )
            self._dialog.model_chosen.connect(self.session.open)
            self._dialog.finished.connect(self._forget_dialog)
            show_dialog(self._dialog)
        if path:
            self._dialog.choose_path(path)

    @property
    def open_dialog(self) -> OpenModelDialog | None:
        return self._dialog

    def set_theme(self, mode: ThemeMode) -> None:
        self.settings.theme = mode  # the application sees to the rest
        self.commands.refresh()

    def toggle_charts(self) -> None:
        self.charts_paused = not self.charts_paused
        self.charts.set_paused(self.charts_paused)
        self.charts_held.emit(self.charts_paused)

    def dock_shortcuts(self) -> list[tuple[PanelDock, str]]:
        return [
            (self.settings_dock, "Ctrl+Shift+E"),
            (self.charts_dock, "Ctrl+J"),
            *self.views.docks,
            (self.log_dock, "Ctrl+Shift+Y"),
            (self.history_dock, "Ctrl+Shift+N"),
        ]

    def _show_history(self) -> None:
        self.commands.run("dock.notifications")

    def show_setting(self, name: str) -> None:
        """Bring the engine settings to the front, at the row of one."""
        self.settings_dock.show()
        self.settings_dock.raise_()
        self.engine_settings.show_row(name)

    def show_shortcuts(self) -> None:
        self._show_dialog(ShortcutsDialog(self.commands))

    def show_palette(self) -> None:
        commands = (e for e in self.commands.entries() if e.id != PALETTE)
        self.command_palette.open(commands, self.preferences.entries())

    def _on_palette(self, chosen: str) -> None:
        if chosen.startswith(SETTING):
            self.preferences.show_setting(chosen.removeprefix(SETTING))
        else:
            self.commands.run(chosen)

    def show_about(self) -> None:
        self._show_dialog(AboutDialog())

    def _show_dialog(self, dialog: QDialog) -> None:
        dialog.setParent(self, dialog.windowFlags())
        dialog.open()

    def _forget_dialog(self) -> None:
        self._dialog = None

    # What is said -----------------------------------------------------------------------------

    def _on_settings_changed(
        self, text: str, details: tuple[str, ...], chosen: dict[str, object]
    ) -> None:
        self.charts.mark(text, details=details)
        self.session.remember_settings(chosen)

    # The window itself -------------------------------------------------------------------------

    def show_notice(self, notice: Notice) -> None:
        self.notices.show_notice(notice)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped_path(event):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        path = dropped_path(event)
        if path:
            event.acceptProposedAction()
            self.show_open_model(path)

    def _restore(self) -> None:
        """Size and docks as they were; a sensible place where the screen of then is gone."""
        available = self.screen().availableSize()
        self.resize(first_size(available))
        self.restoreGeometry(self.settings.geometry)
        if not is_on_a_screen(self):
            self.move(self.screen().availableGeometry().topLeft())
            self.resize(self.size().boundedTo(available))
        self.docks.restore()

    def closeEvent(self, event: QCloseEvent) -> None:
        if not all(page.may_close(self) for page in self.pages):
            event.ignore()
            return
        self.settings.geometry = self.saveGeometry()
        self.docks.keep()
        self.settings.sync()
        self.flight.close()
        self.compare.close()
        self.broadcast.close()
        self.preferences.close()
        self.closing.emit()
        event.accept()
