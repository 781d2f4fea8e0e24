"""The composition root: creates every part and passes it the parts it needs.

    settings, log                            stores
    bridge, session                          the engine and the open model
    charts, engine settings, engine views    panels beside the page
    pages                                    chat, tune, inspect, models, runs, server
    window                                   shows pages and panels
    dialogs, layouts, recordings, ...        controllers with commands of their own
    status, finished work, GPU, crashes      presenters: engine and jobs -> window

`wiring.py` then connects their signals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.features.bench.engine import name_of as name_of_bench
from app.features.bench.page import BenchPage
from app.features.bench.prompts import of_calls, of_chats
from app.features.chat.controller import ChatController
from app.features.chat.last_chat import LastChatKeeper
from app.features.chat.page import ChatPage
from app.features.chat.recovery_work import RecoveryWork
from app.features.compare.record import Side
from app.features.compare.replies import Reply
from app.features.compare.replies import name_of as name_of_compared
from app.features.inspect.engine_views import EngineViews
from app.features.inspect.log_view import LogPanel
from app.features.inspect.page import InspectPage, Tab
from app.features.learn.controller import Lessons
from app.features.models.downloads import DownloadQueue, DownloadWork
from app.features.models.estimate import estimate
from app.features.models.hub import Hub
from app.features.models.page import ModelsPage, ModelsPages
from app.features.models.session import ModelSession
from app.features.models.switcher import ModelSwitcher
from app.features.models.welcome import WelcomePage
from app.features.preferences.controller import SettingsController
from app.features.recording.commands import RecordingController
from app.features.recording.crash_watch import CrashWatch
from app.features.recording.panel import RecordingsPanel
from app.features.recording.recorder import FlightRecorder
from app.features.runs.page import RunsPage
from app.features.runs.place import CompareInChat, JobWork, continue_as_chat, make_runs_page
from app.features.serve.page import ServerPage
from app.features.serve.switch import ConnectionCommands
from app.features.tune.engine_settings import EngineSettingsPanel
from app.features.tune.page import TunePage
from app.link.bridge import EngineBridge
from app.link.change_watch import ChangeWatch
from app.link.engine_handle import ThreadFactory
from app.link.hardware_monitor import GpuFeed, PeaksRecorder, PeaksStore
from app.link.tasks import wait_for_tasks
from app.log import LogBuffer, set_log_level, set_log_size
from app.main.commands import (
    file_commands,
    help_commands,
    inspect_commands,
    tune_commands,
    view_commands,
)
from app.main.engine_status import (
    ConnectionStatus,
    EngineProcess,
    EngineStatus,
    FinishedWork,
    factory_of,
    feed_metrics,
)
from app.main.main_window import Dialogs, MainWindow
from app.main.startup import Startup
from app.main.wiring import connect
from app.paths import downloads_file, recordings_dir, trash_file
from app.server.call import origin_of
from app.storage import open_store
from app.storage.chat_store import ChatStore
from app.storage.trash import Trash
from app.window.docks import TUNE_DOCKS, CardDock, DockPlan, Page, PanelDock
from app.window.layouts import LayoutController, LayoutStore, plan_of
from app.window.notices import NoticeArea
from app.window.notifications import NoticeHistory
from app.window.program_settings import PROCESS
from app.window.progress import LoadStrip, WorkArea
from app.window.setting_specs import this_machine
from app.window.settings_store import SettingsStore
from app.window.settings_watch import SettingsWatch
from widgets.controls.kept_focus import KeptFocus
from widgets.live.charts import LiveCharts
from widgets.live.metric_store import MetricStore
from widgets.live.strip import StatStrip
from widgets.plot.clock import RedrawClock
from widgets.plot.marks import MarkLog
from widgets.theme.restyling import restyling
from widgets.theme.theme import apply_text_size, apply_theme

SHUTDOWN_S = 5.0
LEAVE_LOAD_S = 1.0
"""Without an open model the engine has nothing to finish. It sees within this time that its load is
cancelled, unless it imports: then it is left behind."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages, and the chat store."""

    store: ChatStore
    chat: ChatController
    chat_page: ChatPage
    tune: TunePage
    inspect: InspectPage
    models_place: ModelsPages
    runs: RunsPage
    bench: BenchPage
    server: ServerPage

    @property
    def models(self) -> ModelsPage:
        return self.models_place.page


def page_list(pages: Pages) -> list[Page]:
    """In the order of the rail."""
    chat, tune, runs, server = pages.chat_page, pages.tune, pages.runs, pages.server
    place = pages.models_place
    return [
        Page(
            "Chat", "chat", chat, tuple(chat.actions()), (chat.actions_changed,),
            may_close=chat.recovery.may_close,
        ),
        Page(
            "Tune", "tune", tune, tuple(tune.commands()), (tune.commands_changed,), TUNE_DOCKS
        ),
        Page(
            "Bench", "chart", pages.bench, tuple(pages.bench.commands()),
            (pages.bench.commands_changed,), may_close=pages.bench.may_close,
        ),
        Page("Inspect", "inspect", pages.inspect, shows=pages.inspect.show_view),
        Page("Models", "models", place, tuple(place.commands())),
        Page(
            "Runs", "quantize", runs, tuple(runs.commands()), (runs.commands_changed,),
            may_close=runs.may_close,
        ),
        Page(
            "Server", "server", server, tuple(server.commands()), (server.commands_changed,)
        ),
    ]  # fmt: skip


class Application(QObject):
    """Every part that lives as long as the window: created and shut down in order."""

    def __init__(
        self,
        app: QApplication,
        make_thread: ThreadFactory | None = None,
        settings: SettingsStore | None = None,
        *,
        is_isolated: bool = False,
    ) -> None:
        """`make_thread`: replaces the engine that the settings choose. `is_isolated`: run the
        engine in its own process until the settings change."""
        super().__init__()
        self.settings = settings or SettingsStore()
        preferences = self.settings.preferences
        preferences.bind("text_size", lambda percent: apply_text_size(app, percent))
        preferences.bind("theme", lambda mode: apply_theme(app, mode))
        self.log = LogBuffer()
        self.log.start()
        preferences.bind("log_level", set_log_level)
        preferences.bind("log_size", set_log_size)
        place = PROCESS if is_isolated else preferences.get("engine_place")
        self.bridge = EngineBridge(make_thread or factory_of(place))
        self.metrics = MetricStore()
        feed_metrics(self.metrics, self.bridge)  # first: views read them at each snapshot
        self.changes = ChangeWatch(self.bridge, self)
        self.session = ModelSession(self.bridge, self.settings)
        with restyling().put_off():
            self._make_panels()
            self.pages = self._make_pages()
            self._make_window()
            self._make_controllers()
            self._make_presenters()
            self.window.commands.fill(self.window.menuBar())
        KeptFocus(app, self.window)
        connect(self)
        self.window.restore()

    # Parts -----------------------------------------------------------------------------------

    def _make_panels(self) -> None:
        bridge, settings = self.bridge, self.settings
        self._clock, self._marks = RedrawClock(), MarkLog()  # one clock: all charts draw together
        self.strip = StatStrip(self.metrics, self._clock)
        self.load_strip = LoadStrip()
        self.work = WorkArea()
        self.notices = NoticeArea()
        self.history = NoticeHistory(self)
        self.charts = LiveCharts(self.metrics, self._clock, self._marks)
        recent = lambda: [(m.path, m.load_format, m.title) for m in settings.recent]
        self.engine_settings = EngineSettingsPanel(
            bridge, settings.profiles, this_machine(), recent=recent, times=settings,
            metrics=self.metrics,
        )
        refuse = self.engine_settings.commands.refusal_of
        self.views = EngineViews(
            bridge, self._clock, self, self.name_of, refuse, self.charts.group.cursor,
            lambda request_id: self.pages.chat.generation.record_of(request_id),
        )  # fmt: skip

    def _make_pages(self) -> Pages:
        bridge, settings, session = self.bridge, self.settings, self.session
        preferences = settings.preferences
        store = open_store()
        wants_titles = lambda: preferences.get("chat_titles")
        chat = ChatController(bridge, store, self.changes, self.name_of, wants_titles)
        chat_page = ChatPage(
            chat,
            name_of=self.name_of,
            clock=self._clock,
            steps_of=self.views.steps_of,
            asks_about_links=lambda: preferences.get("confirm_links"),
        )
        hub = Hub()
        trash = self.trash = Trash(trash_file())  # one for all: its journal is one file
        self.recordings_panel = RecordingsPanel()
        in_use = lambda: bridge.gives_back
        queue = DownloadQueue(hub, downloads_file())
        models = ModelsPage(settings, queue, trash, hub, in_use, session, estimate)
        runs = make_runs_page(
            bridge, settings, session, models, trash, self.engine_settings, self._go_on
        )
        server = ServerPage(bridge, settings, session, self.metrics, self._clock)
        return Pages(
            store,
            chat,
            chat_page,
            TunePage(
                bridge, settings, self.metrics, self._clock, self._marks, self.charts.group.cursor
            ),
            self.views.make_page(Tab("Recordings", "recordings", self.recordings_panel)),
            ModelsPages(models, partial(WelcomePage, in_use, estimate)),
            runs,
            BenchPage(
                bridge, runs.book, self.engine_settings,
                (of_chats(store), of_calls(server.serving.calls)), server.bench_targets,
                settings,
            ),
            server,
        )

    def _make_window(self) -> None:
        self.settings_dock = CardDock("Engine settings", "engine-settings", self.engine_settings)
        self.charts_dock = PanelDock("Live charts", "live-charts", self.charts)
        self.log_dock = CardDock("Log", "log", LogPanel(self.log))
        docks = (
            (self.settings_dock, "Ctrl+Shift+E"),
            (self.charts_dock, "Ctrl+J"),
            *self.views.docks,
            (self.log_dock, "Ctrl+Shift+Y"),
        )
        for dock, _ in docks:
            dock.visibilityChanged.connect(self._clock.wake)  # a hidden tab was not drawn
        self.layout_store = LayoutStore(self.settings.path.with_name("layouts.json"))
        self.window = MainWindow(
            self.settings,
            page_list(self.pages),
            docks,
            self._dock_plan,
            self.history,
            (self.strip, self.load_strip),
            (self.notices, self.work),
        )
        for shared in (self._clock, self._marks):
            shared.setParent(self.window)

    def _dock_plan(self, page: Page) -> DockPlan:
        """The docks at the first visit of a page, in the current layout."""
        layout = self.layout_store.current(self.settings.layout)
        return plan_of(layout.base, page.name, page.docks)

    def _make_controllers(self) -> None:
        """Controllers that open further windows, with their commands."""
        window, bridge, settings, session = self.window, self.bridge, self.settings, self.session
        panel, add = self.engine_settings, window.commands.add
        self.preferences = SettingsController(settings.preferences, panel, window.commands, window)
        self.dialogs = Dialogs(window, self.preferences)
        self.recorder = FlightRecorder(bridge, window)
        self.recordings = RecordingController(
            self.recorder, self.recordings_panel, self.trash, recordings_dir(), window
        )
        charts = (self.charts, self.pages.tune.charts)
        add(*window.page_commands())
        self.switcher = ModelSwitcher(
            settings, session, bridge, self.strip, window, self.pages.models.open_model
        )
        add(*file_commands(window, self.switcher.toggle, session, bridge))
        add(*view_commands(window, settings.preferences, charts))
        add(*tune_commands(panel, bridge), *inspect_commands(self.pages.inspect))
        add(*help_commands(window, self.dialogs))
        add(*self.recordings.commands())
        add(*self.preferences.commands())

        def show_tune() -> None:
            window.show_widget(self.pages.tune)
            self.settings_dock.bring_to_front()

        self.lessons = Lessons(
            bridge, self.pages.tune, panel, settings, window, show_tune, session.remember_settings,
            self.pages.runs.jobs, self.work, (window.rail, self.strip),
        )  # fmt: skip
        self.pages.bench.wants_front.connect(lambda: window.show_widget(self.pages.bench))
        self.pages.chat_page.empty.add_offer(self.lessons.offer)
        self.pages.models_place.lessons_wanted.connect(self.lessons.start_first)
        add(*self.lessons.commands())
        self.layouts = LayoutController(
            self.layout_store, settings, window.docks, window.commands, lambda: window.page.name,
            window.show_page_named, window,
        )  # fmt: skip
        self.compare_in_chat = CompareInChat(self.pages.runs, session, bridge)
        switch = self.pages.server.switch
        self.connection_commands = ConnectionCommands(
            switch, self.pages.server.engines.use, window.commands, self
        )

    def _make_presenters(self) -> None:
        """Presenters that show the state of engine and jobs in the window."""
        window, bridge, session, pages = self.window, self.bridge, self.session, self.pages
        settings = self.settings
        self.status, self.connection = EngineStatus(self), ConnectionStatus(self)
        self.process = EngineProcess(self)
        models, runs = pages.models, pages.runs
        self.download_work = DownloadWork(models.queue, self.work, models.open_downloaded)
        self.settings_watch = SettingsWatch(settings, self.notices.show_notice, window)
        self.recovery_work = RecoveryWork(pages.chat, self.work, window)
        self.job_work = JobWork(runs, self.work, runs.show_table)
        self.finished = FinishedWork(self)
        restorable = lambda: (session.latest, pages.chat.current.id)
        self.crash = CrashWatch(bridge, self.recorder, restorable, self)
        self.peaks = PeaksRecorder(bridge, PeaksStore(), self)  # after the views: they listen
        self.gpu = GpuFeed(bridge, self)
        self.last_chat = LastChatKeeper(pages.chat_page, settings)
        self.startup = Startup(self)

    # What the user sees of it ------------------------------------------------------------------

    def name_of(self, request_id: str) -> str:
        """A request's display name: "load 12", "Chat API 3f2a", or the title of its chat."""
        pages = self.pages
        return (
            name_of_compared(request_id)
            or name_of_bench(request_id)
            or pages.tune.load.name_of(request_id)
            or origin_of(request_id)
            or pages.chat.title_of(request_id)
        )

    def _go_on(self, reply: Reply, side: Side | None, model: str) -> None:
        continue_as_chat(self.pages.chat, self.session, self.bridge, reply, side, model)
        self.window.show_widget(self.pages.chat_page)
        self.window.activateWindow()

    # Its life ----------------------------------------------------------------------------------

    def show(self) -> None:
        self.window.show()

    def start(self, given: Mapping[str, Any]) -> None:
        """Start parts that can wait until the window shows. `given`: the command line's
        settings."""
        restyling().is_gradual = True
        restyling().go_on()
        self.gpu.watch.start()
        self.pages.models.start()
        self.pages.server.start()
        self.startup.open(given, self.crash.start())

    def shutdown(self) -> None:
        """Save, cancel jobs and requests, end the engine: within a few seconds."""
        self.pages.bench.close_down(SHUTDOWN_S)
        self.pages.runs.close_down(SHUTDOWN_S)
        self.pages.server.close_down()
        self.window.close()
        restyling().is_gradual = False
        restyling().leave()
        self.gpu.watch.stop()
        self.crash.stop()
        self.bridge.shutdown(SHUTDOWN_S if self.bridge.is_ready else LEAVE_LOAD_S)
        self.pages.tune.load.stop()
        self.pages.models.close_down()
        self.pages.chat_page.draft.keep()
        self.pages.chat.close()
        self.pages.store.close()
        wait_for_tasks(1.0)
        self.settings.sync()
        self.log.stop()
        self.window.deleteLater()
