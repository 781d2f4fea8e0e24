"""The Server page: this window's engine served to others, at the left how and at the right what
comes of it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QStackedWidget, QVBoxLayout, QWidget

from app.commands import Command
from app.connections.key_desk import KeyDesk
from app.engine_bridge import EngineBridge
from app.serving.choice import ServingChoice
from app.serving.desk import KEY, ServingDesk
from app.serving.panel import TOGGLE, ServingPanel
from app.serving.view import ServingView
from app.settings_store import SettingsStore
from widgets.page_frame import PageFrame

LEFT_WIDTH, NARROW = 400, 700
AT_START = "serve_at_start"
SERVE = 0
"""The page's tabs."""


class ServerPage(QWidget):
    """`wants_front`: it is to be shown; `requests_wanted`: so is the view of requests."""

    wants_front = Signal()
    requests_wanted = Signal()
    commands_changed = Signal()

    def __init__(self, bridge: EngineBridge, settings: SettingsStore) -> None:
        super().__init__()
        self._settings = settings
        self.keys = KeyDesk(parent=self)
        self.serving = ServingDesk(bridge, self.keys, self)
        self.panel = ServingPanel(
            self.serving, self.keys, settings.serving,
            starts_itself=settings.preferences.get(AT_START),
        )  # fmt: skip
        self.view = ServingView(self.serving)
        self._build()
        self._connect()
        self._show_choice()

    def _build(self) -> None:
        self._right = QStackedWidget()
        self._right.addWidget(self.view)
        self._frame = PageFrame(
            "Serve this engine, or use another", (("Serve this engine", self.panel),), self._right,
            left_width=LEFT_WIDTH, narrow=NARROW,
        )  # fmt: skip
        self.tabs = self._frame.tabs
        self.tabs.currentChanged.connect(self._right.setCurrentIndex)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(self._frame)

    def _connect(self) -> None:
        settings, panel = self._settings, self.panel
        panel.chosen.connect(self._remember)
        panel.renewed.connect(self._show_choice)
        panel.form.at_start_toggled.connect(lambda on: settings.preferences.set(AT_START, on))
        settings.preferences.changed.connect(self._on_preference)
        self.view.free_port_wanted.connect(panel.take_port)
        self.view.requests_wanted.connect(self.requests_wanted)
        self.serving.changed.connect(self.commands_changed)

    # For the window ----------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """What the page adds to the menus."""
        return [
            Command(
                TOGGLE, "Start or stop the server", self.panel.toggle, "Tune", icon="server",
                section="server", is_checked=lambda: self.serving.is_on,
                is_enabled=lambda: self.panel.can_toggle,
            ),
        ]  # fmt: skip

    def start(self) -> None:
        """The window is on the screen."""
        if self._settings.preferences.get(AT_START):
            self.serving.start(self.panel.choice)

    def close_down(self) -> None:
        """The program ends."""
        self.serving.close_down()

    def show_tab(self, tab: int) -> None:
        """Come to the front with one of the tabs."""
        self.wants_front.emit()
        self.tabs.setCurrentIndex(tab)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.keys.fetch(KEY)

    # -------------------------------------------------------------------------------------------

    def _remember(self, choice: ServingChoice) -> None:
        self._settings.serving = choice

    def _show_choice(self) -> None:
        self.view.show_choice(self.panel.choice, has_key=self.panel.has_key)

    def _on_preference(self, name: str) -> None:
        if name == AT_START:
            self.panel.form.at_start.setChecked(self._settings.preferences.get(AT_START))
