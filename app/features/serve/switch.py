"""`EngineSwitch`: uses a remote engine or the local one; a command per connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QObject, QTimer, Signal

from app.clients.connection import Connection
from app.clients.look import reach
from app.clients.target import LinkChanged, Probe, ServerType, Target
from app.features.models.session import ModelSession
from app.features.serve.connections import ConnectionStore
from app.link.bridge import EngineBridge, EngineState
from app.link.tasks import Task, run_task
from app.window.commands import Command, CommandRegistry
from app.window.notices import error_notice
from app.window.settings_store import RecentModel
from engine.errors import ErrorInfo, InferdeckError, describe

log = logging.getLogger(__name__)

NOTICE = "elsewhere"
SWITCHED = "Chats and views now use this engine. The local model was unloaded."
SERVER_STOPS = "This window's server stopped. It starts again with the local engine."
OWN = ErrorInfo("This is the address of this window's own server.", "Choose another engine.")


class EngineSwitch(QObject):
    """`changed`: another engine is in use or connecting. `edit_wanted(connection id)`."""

    changed = Signal()
    notice = Signal(object)  # Notice
    notice_gone = Signal(str)
    edit_wanted = Signal(str)

    def __init__(
        self,
        bridge: EngineBridge,
        session: ModelSession,
        store: ConnectionStore,
        is_own: Callable[[str], bool] = lambda url: False,
        is_serving: Callable[[], bool] = lambda: False,
        parent: QObject | None = None,
    ) -> None:
        """`is_own(url)`: whether it is this window's server; `is_serving()`: whether that runs."""
        super().__init__(parent)
        self._is_own, self._is_serving = is_own, is_serving
        self._bridge, self._session, self.store = bridge, session, store
        self._wanted: Connection | None = None  # whose key is being asked for
        self._task: Task | None = None
        self._own: RecentModel | None = None  # what was open here last
        self._is_away = False
        self._note = self._change = ""
        self.current: Connection | None = None
        """The connection in use; None: the local engine, or one from the command line."""
        store.keys.arrived.connect(self._on_key)
        bridge.link_changed.connect(self._on_link)
        bridge.unloaded.connect(self._on_unloaded)
        session.opened.connect(self._on_opened)

    @property
    def is_elsewhere(self) -> bool:
        return self._bridge.is_remote

    @property
    def used_id(self) -> str:
        return self.current.id if self.current is not None else ""

    # What the user does ------------------------------------------------------------------------

    def use(self, connection: Connection, change: str = "") -> None:
        """Use that engine. Chats are kept; running replies stop. change: of the settings of the
        engine in use."""
        if self._task is not None:
            self._task.cancel()
        self.notice_gone.emit(NOTICE)
        if self._is_own(connection.base_url):
            self._complain(connection, OWN)
            return
        self._wanted, self._change = connection, change
        self.store.keys.fetch(connection.key_name)

    def back(self) -> None:
        """Use the local engine and reload its model."""
        self._wanted = None
        self._bridge.detach()  # the rest follows from there

    def take_note(self) -> str:
        """The consequences of the last switch to a remote engine; "" once they were taken."""
        note, self._note = self._note, ""
        return note

    def take_change(self) -> str:
        """The change of settings with which the engine in use was started again; "" once it was
        taken."""
        change, self._change = self._change, ""
        return change

    # On the way --------------------------------------------------------------------------------

    def _on_key(self, name: str) -> None:
        connection, self._wanted = self._wanted, None
        if connection is None or connection.key_name != name:
            self._wanted = connection
            return
        target = self.store.target(connection)
        # asked first: as long as nobody answers, the engine of now goes on
        self._task = run_task(
            self,
            lambda: reach(target, connection.server_type),
            lambda probe: self._on_reached(connection, target, probe),
            lambda error: self._complain(connection, error),
        )

    def _on_reached(self, connection: Connection, target: Target, probe: Probe | None) -> None:
        if probe is not None:
            connection = replace(connection, server_type=probe.server_type, version=probe.version)
            if self.store.find(connection.id) is not None:
                self.store.keep(connection)
        note = ""
        if not self._bridge.is_remote:
            self._own = self._session.latest
            note = f"{SWITCHED} {SERVER_STOPS}" if self._is_serving() else SWITCHED
        try:
            if connection.server_type is ServerType.INFERDECK:
                from app.clients.attached import attach

                attach(self._bridge, target)
            else:
                from app.clients.engine import ForeignEngine

                model = connection.model
                self._bridge.attach(lambda on_event: ForeignEngine(on_event, target, probe, model))
        except InferdeckError as error:
            self._complain(connection, describe(error))
            return
        log.info("using engine %s at %s", connection.name, connection.base_url)
        self.current, self._note = connection, note
        self.changed.emit()

    def _on_opened(self, config: object, chosen: object) -> None:
        if not self._bridge.is_remote:
            self._own = self._session.current

    def _on_unloaded(self) -> None:
        if not self._bridge.is_remote and not self._is_away:
            self._own = None  # the user closed it

    def _on_link(self, link: LinkChanged | None) -> None:
        self._is_away = link is not None
        if link is None:
            self.current, self._note = None, ""
            self.notice_gone.emit(NOTICE)
            QTimer.singleShot(0, self, self._open_own)
            self.changed.emit()

    def _open_own(self) -> None:
        """Reload the local model, unless another one is loading."""
        own = self._own
        if own is not None and not self._is_away and self._bridge.state is EngineState.EMPTY:
            self._session.open(own.path, own.load_format, own.settings)

    def _complain(self, connection: Connection, error: ErrorInfo) -> None:
        self._change = ""
        actions = [("Edit connection", lambda: self.edit_wanted.emit(connection.id))]
        if self._bridge.is_remote:
            actions.append(("Use local engine", self.back))
        title = f"Cannot switch to {connection.name}."
        self.notice.emit(error_notice(NOTICE, title, error, *actions))


HERE, ATTACH, RUN = "engine.here", "engine.attach", "engine.run"
MENU, SECTION, SUBMENU = "Tune", "engines", "Engine in use"


def use_id(connection_id: str) -> str:
    return f"engine.use.{connection_id}"


class ConnectionCommands(QObject):
    """Keeps one command per connection."""

    def __init__(
        self, switch: EngineSwitch, use: Callable[[Connection], object], registry: CommandRegistry,
        parent: QObject,
    ) -> None:  # fmt: skip
        super().__init__(parent)
        self._switch, self._use_engine, self._registry = switch, use, registry
        self._names: dict[str, str] = {}
        switch.store.changed.connect(self.renew)
        switch.changed.connect(registry.refresh)
        self.renew()

    def renew(self) -> None:
        wanted = {one.id: one for one in self._switch.store.connections}
        for known in list(self._names):
            if known not in wanted or wanted[known].name != self._names[known]:
                del self._names[known]
                self._registry.remove(use_id(known))
        for one in wanted.values():
            if one.id not in self._names:
                self._names[one.id] = one.name
                self._registry.add(self._command(one))
        self._registry.refresh()

    def _command(self, one: Connection) -> Command:
        return Command(
            use_id(one.id), f"Use connection {one.name}".replace("&", "&&"),
            partial(self._use, one.id), MENU, section=SECTION, choice="engine", submenu=SUBMENU,
            is_checked=lambda: self._switch.used_id == one.id,
        )  # fmt: skip

    def _use(self, connection_id: str) -> None:
        found = self._switch.store.find(connection_id)
        if found is not None and self._switch.used_id != connection_id:
            self._use_engine(found)
        self._registry.refresh()
