"""The Server page: this window's engine served to others, and the engines of others used here.

+-----------------------------------+------------------------------------+
| Serve this engine | Other engines | the server: address, calls         |
| how it is served, or              | or: a card for each engine, this   |
| the connections and one of them   | machine's first, with its figures  |
+-----------------------------------+------------------------------------+
"""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QStackedWidget, QVBoxLayout, QWidget

from app.commands import Command
from app.connections.book import ConnectionBook
from app.connections.cards import EngineCards
from app.connections.commands import ATTACH, HERE, MENU, SECTION, SUBMENU
from app.connections.key_desk import KeyDesk
from app.connections.panel import ConnectionsPanel
from app.connections.switch import EngineSwitch
from app.engine_bridge import EngineBridge
from app.models.session import ModelSession
from app.serving.choice import ServingChoice
from app.serving.desk import KEY, ServingDesk
from app.serving.panel import TOGGLE, ServingPanel
from app.serving.scrolled import Scrolled
from app.serving.view import ServingView
from app.settings_store import SettingsStore
from widgets.chat.toast import Toast
from widgets.page_frame import PageFrame
from widgets.read_area import scroll_by_keys

LEFT_WIDTH, NARROW = 400, 700
AT_START = "serve_at_start"
SERVE, OTHERS = range(2)
"""The page's tabs."""


class ServerPage(QWidget):
    """`wants_front`: it is to be shown; `requests_wanted`: so is the view of requests."""

    wants_front = Signal()
    requests_wanted = Signal()
    commands_changed = Signal()

    def __init__(
        self, bridge: EngineBridge, settings: SettingsStore, session: ModelSession
    ) -> None:
        super().__init__()
        self._settings = settings
        self.keys = KeyDesk(parent=self)
        self.serving = ServingDesk(bridge, self.keys, self)
        self.panel = ServingPanel(
            self.serving, self.keys, settings.serving,
            starts_itself=settings.preferences.get(AT_START),
        )  # fmt: skip
        self.view = ServingView(self.serving)
        self.book = ConnectionBook(settings, self.keys, self)
        self.switch = EngineSwitch(bridge, session, self.book, self.serving.is_own, self)
        self.cards = EngineCards(bridge, self.book, lambda: self.switch.used_id)
        self.toast = Toast(self)
        self.connections = ConnectionsPanel(self.book, self.toast)
        self._build()
        self._connect()
        self._show_choice()

    def _build(self) -> None:
        self._right = QStackedWidget()
        area = Scrolled(self.view, "The server")
        scroll_by_keys(area)
        self._right.addWidget(area)
        self._right.addWidget(self.cards)
        forms = (("Serve this engine", self.panel), ("Other engines", self.connections))
        self._frame = PageFrame(
            "Serve this engine, or use another", forms, self._right,
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
        self.cards.use_wanted.connect(self.switch.use)
        self.cards.back_wanted.connect(self.switch.back)
        self.cards.edit_wanted.connect(self.edit)
        self.switch.edit_wanted.connect(self.edit)
        self.switch.changed.connect(self.cards.mark)

    # For the window ----------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """What the page adds to the menus."""
        return [
            Command(
                TOGGLE, "Start or stop the server", self.panel.toggle, "Tune", icon="server",
                section="server", is_checked=lambda: self.serving.is_on,
                is_enabled=lambda: self.panel.can_toggle,
            ),
            Command(
                HERE, "Back to this machine's engine", self.switch.back, MENU, section=SECTION,
                choice="engine", submenu=SUBMENU, is_checked=lambda: not self.switch.is_elsewhere,
            ),
            Command(
                ATTACH, "Attach to an engine…", self.begin_connection, MENU, section=SECTION,
                submenu=SUBMENU,
            ),
        ]  # fmt: skip

    def start(self) -> None:
        """The window is on the screen."""
        if self._settings.preferences.get(AT_START):
            self.serving.start(self.panel.choice)

    def close_down(self) -> None:
        """The program ends."""
        self.toast.dismiss()
        self.cards.close_down()
        self.serving.close_down()

    def edit(self, connection_id: str) -> None:
        """Come to the front with the fields of a connection."""
        self.show_tab(OTHERS)
        self.connections.choose(connection_id)

    def begin_connection(self) -> None:
        """Come to the front with empty fields for another engine."""
        self.show_tab(OTHERS)
        self.connections.begin()

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
