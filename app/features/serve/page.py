"""`ServerPage`: serve this engine, and run or use other engines."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QStackedWidget, QWidget

from app.features.models.session import ModelSession
from app.features.serve.bench_targets import BenchTargets
from app.features.serve.cards import EngineCards
from app.features.serve.connections import ConnectionStore, KeyCache
from app.features.serve.connections_panel import ConnectionsPanel
from app.features.serve.controller import KEY, ServerController, ServingState
from app.features.serve.form import ServingForm
from app.features.serve.launch_panel import LaunchPanel
from app.features.serve.managed import ManagedEngines
from app.features.serve.parts import Scrolled, ScrolledForm
from app.features.serve.switch import ATTACH, HERE, MENU, RUN, SECTION, SUBMENU, EngineSwitch
from app.features.serve.view import ServingView
from app.link.bridge import EngineBridge
from app.server.options import ServingChoice
from app.window.commands import Command
from app.window.settings_store import SettingsStore
from widgets.controls.frames import PageFrame, scroll_by_keys
from widgets.controls.layouts import button, vbox, wrapped
from widgets.controls.notice import Toast
from widgets.controls.text import set_key_tip
from widgets.live.metric_store import MetricStore
from widgets.plot.clock import RedrawClock
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, restyle

TOGGLE = "server.toggle"
BUTTONS = {
    ServingState.OFF: "Start server",
    ServingState.STARTING: "Starting…",
    ServingState.ON: "Stop server",
    ServingState.STOPPING: "Stop now",
}
TIPS = {
    ServingState.OFF: "Start an OpenAI-compatible server for this engine",
    ServingState.STARTING: "Loading server libraries",
    ServingState.ON: "Reject new calls; running requests have 5 s to finish",
    ServingState.STOPPING: "Abort running requests",
}


class ServingPanel(QWidget):
    """The form and the start button. `chosen(ServingChoice)`: save it. `renewed`: choice or key
    changed."""

    chosen = Signal(object)
    renewed = Signal()

    def __init__(
        self, controller: ServerController, keys: KeyCache, choice: ServingChoice, *,
        starts_itself: bool,
    ) -> None:
        super().__init__()
        self._controller, self._keys, self.choice = controller, keys, choice
        self.form = ServingForm()
        self.form.show_choice(choice)
        self.form.at_start.setChecked(starts_itself)
        self.button = button("", self.toggle)
        self.note = wrapped("small")
        area = ScrolledForm(self.form, "Server settings")
        vbox((area, 1), self.note, self.button, of=self, spacing=SPACE_1)
        self.form.changed.connect(self._on_form)
        self.form.key_edited.connect(lambda key: keys.put(KEY, key))
        keys.arrived.connect(self._on_key)
        keys.problem_changed.connect(self._renew)
        controller.changed.connect(self._renew)
        self._renew()

    @property
    def has_key(self) -> bool:
        return bool(self.form.key.text())

    def toggle(self) -> None:
        """Start, stop, or stop now."""
        if self._controller.can_start:
            if not self.choice.problems(self.form.key.text()):
                self._keys.put(KEY, self.form.key.text())
                self._controller.start(self.choice)
        else:
            self._controller.stop()

    def take_port(self, port: int) -> None:
        self.form.port.setValue(port)
        self.toggle()

    def _on_form(self) -> None:
        if self.form.choice != self.choice:
            self.choice = self.form.choice
            self.chosen.emit(self.choice)
        self._renew()

    def _on_key(self, name: str) -> None:
        if name == KEY:
            self.form.show_key(self._keys.key(KEY))
            self._renew()

    def _renew(self) -> None:
        state, key = self._controller.state, self.form.key.text()
        problems = self.choice.problems(key)
        self.form.show_problems(problems, self._keys.problem if key else "")
        self.form.set_running(state is not ServingState.OFF)
        self.button.setText(BUTTONS[state])
        set_key_tip(self.button, TIPS[state], TOGGLE)
        is_off = state is ServingState.OFF
        set_icon(self.button, *(("play", "accent_text") if is_off else ("stop", "text")))
        restyle(self.button, kind="primary" if is_off else "")
        self.button.setEnabled(state is not ServingState.STARTING and not (is_off and problems))
        self.note.setText("" if is_off else "Stop the server to change these settings.")
        self.note.setVisible(not is_off)
        self.renewed.emit()


LEFT_WIDTH, NARROW = 400, 700
AT_START = "serve_at_start"
SERVE, OTHERS = range(2)
"""The page's tabs."""


class ServerPage(QWidget):
    """`wants_front`: show this page; `requests_wanted`: show the requests view."""

    wants_front = Signal()
    requests_wanted = Signal()
    commands_changed = Signal()

    def __init__(
        self,
        bridge: EngineBridge,
        settings: SettingsStore,
        session: ModelSession,
        metrics: MetricStore,
        clock: RedrawClock,
    ) -> None:
        super().__init__()
        self._settings = settings
        self.keys = KeyCache(parent=self)
        self.serving = ServerController(bridge, self.keys, self)
        self.panel = ServingPanel(
            self.serving, self.keys, settings.serving,
            starts_itself=settings.preferences.get(AT_START),
        )  # fmt: skip
        self.view = ServingView(self.serving)
        self.store = ConnectionStore(settings, self.keys, self)
        self.switch = EngineSwitch(
            bridge, session, self.store, self.serving.is_own, lambda: self.serving.is_on, self
        )
        self.engines = ManagedEngines(self.store, self.switch, self)
        self.bench_targets = BenchTargets(self.store, self.engines, self)
        self.cards = EngineCards(
            bridge, self.store, metrics, clock, lambda: self.switch.used_id, self.engines
        )
        self.toast = Toast(self)
        self.connections = ConnectionsPanel(
            self.store, self.toast, lambda: LaunchPanel(self.store, self.engines)
        )
        self._right = QStackedWidget()
        area = Scrolled(self.view, "Server")
        scroll_by_keys(area)
        self._right.addWidget(area)
        self._right.addWidget(self.cards)
        forms = (("Serve this engine", self.panel), ("Other engines", self.connections))
        self._frame = PageFrame(
            "Server and other engines", forms, self._right,
            left_width=LEFT_WIDTH, narrow=NARROW,
        )  # fmt: skip
        self.tabs = self._frame.tabs
        self.tabs.currentChanged.connect(self._right.setCurrentIndex)
        vbox(self._frame, of=self)
        self._connect()
        self._show_choice()

    def _connect(self) -> None:
        settings, panel = self._settings, self.panel
        panel.chosen.connect(self._remember)
        panel.renewed.connect(self._show_choice)
        panel.form.at_start_toggled.connect(lambda on: settings.preferences.set(AT_START, on))
        settings.preferences.changed.connect(self._on_preference)
        self.view.free_port_wanted.connect(panel.take_port)
        self.view.requests_wanted.connect(self.requests_wanted)
        self.serving.changed.connect(self.commands_changed)
        self.cards.use_wanted.connect(self.engines.use)
        self.cards.back_wanted.connect(self.switch.back)
        self.cards.edit_wanted.connect(self.edit)
        self.cards.polled.connect(self.connections.polled)
        self.switch.edit_wanted.connect(self.edit)
        self.switch.changed.connect(self.cards.mark)
        self.engines.notices.edit_wanted.connect(self.edit)
        self.engines.notices.log_wanted.connect(self._show_log)

    # For the window ----------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        return [
            Command(
                TOGGLE, "Start or stop the server", self.panel.toggle, "Tune", icon="server",
                section="server", is_checked=lambda: self.serving.is_on,
                is_enabled=lambda: self.panel.button.isEnabled(),
            ),
            Command(
                HERE, "Use local engine", self.switch.back, MENU, section=SECTION,
                choice="engine", submenu=SUBMENU, is_checked=lambda: not self.switch.is_elsewhere,
            ),
            Command(
                ATTACH, "Attach to an engine…", self.begin_connection, "File", icon="server",
                section="engine", keywords="connect remote server vLLM SGLang",
            ),
            Command(
                RUN, "Run vLLM, SGLang or another engine…", self.run_with, MENU, section=SECTION,
                submenu=SUBMENU,
            ),
        ]  # fmt: skip

    def start(self) -> None:
        """Called when the window is visible."""
        if self._settings.preferences.get(AT_START):
            self.serving.start(self.panel.choice)

    def close_down(self) -> None:
        """Called when the program exits."""
        self.toast.dismiss()
        self.cards.close_down()
        self.engines.close_down()
        self.serving.close_down()

    def edit(self, connection_id: str) -> None:
        self.show_tab(OTHERS)
        self.connections.choose(connection_id)

    def begin_connection(self) -> None:
        self.show_tab(OTHERS)
        self.connections.begin()

    def run_with(self, model: str = "", settings: Mapping[str, str] | None = None) -> None:
        """Choose an engine to run this model with, and these flags."""
        self.show_tab(OTHERS)
        self.connections.begin_launch(model, settings)

    def show_tab(self, tab: int) -> None:
        self.wants_front.emit()
        self.tabs.setCurrentIndex(tab)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.keys.fetch(KEY)

    # -------------------------------------------------------------------------------------------

    def _show_log(self, connection_id: str) -> None:
        self.show_tab(OTHERS)
        self.cards.show_log(connection_id)

    def _remember(self, choice: ServingChoice) -> None:
        self._settings.serving = choice

    def _show_choice(self) -> None:
        self.view.show_choice(self.panel.choice, has_key=self.panel.has_key)

    def _on_preference(self, name: str) -> None:
        if name == AT_START:
            self.panel.form.at_start.setChecked(self._settings.preferences.get(AT_START))
