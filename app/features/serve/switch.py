"""What engines elsewhere add to the menus and the palette: one command for each that is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QObject, QTimer, Signal

from app.clients.connection import Connection
from app.clients.look import reach
from app.clients.target import Dialect, LinkChanged, OnEvent, Probe, Target
from app.features.models.session import ModelSession
from app.features.serve.address_book import ConnectionBook
from app.link.bridge import EngineBridge, EngineState
from app.link.engine_handle import EngineThreadLike, ThreadFactory
from app.link.tasks import Task, run_task
from app.window.commands import Command, CommandRegistry
from app.window.notices import Notice, error_notice
from app.window.settings_store import RecentModel
from engine.errors import ErrorInfo, InferdeckError, describe

log = logging.getLogger(__name__)

NOTICE = "elsewhere"
OWN = ErrorInfo(
    "It is the server of this window.", "The window shows that engine already: give another one."
)


class EngineSwitch(QObject):
    """`changed`: another engine is used, or is being asked. `edit_wanted(id of a connection)`."""

    changed = Signal()
    notice = Signal(object)  # Notice
    notice_gone = Signal(str)
    edit_wanted = Signal(str)

    def __init__(
        self,
        bridge: EngineBridge,
        session: ModelSession,
        book: ConnectionBook,
        is_own: Callable[[str], bool] = lambda url: False,
        parent: QObject | None = None,
    ) -> None:
        """`is_own`: whether an address is that of the window's own server."""
        super().__init__(parent)
        self._is_own = is_own
        self._bridge, self._session, self.book = bridge, session, book
        self._wanted: Connection | None = None  # whose key is being asked for
        self._task: Task | None = None
        self._own: RecentModel | None = None  # what was open here last
        self._is_away = False
        self.current: Connection | None = None
        """The engine elsewhere that the window uses; None: that of this machine, or one that was
        named on the command line alone."""
        book.keys.arrived.connect(self._on_key)
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

    def use(self, connection: Connection) -> None:
        """Turn the window to that engine. Chats stay; replies being written are stopped."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.notice_gone.emit(NOTICE)
        if self._is_own(connection.base_url):
            self._complain(connection, f"{connection.name} was not used.", OWN)
            return
        self._wanted = connection
        self.book.keys.fetch(connection.key_name)

    def back(self) -> None:
        """To the engine of this machine, with the model that was open there."""
        self._wanted = None
        self._bridge.detach()  # the rest follows from there

    # On the way --------------------------------------------------------------------------------

    def _on_key(self, name: str) -> None:
        connection, self._wanted = self._wanted, None
        if connection is None or connection.key_name != name:
            self._wanted = connection
            return
        target = connection.target(self.book.key(connection))
        # asked first: as long as nobody answers, the engine of now goes on
        self._task = run_task(
            self,
            lambda: reach(target, connection.dialect),
            lambda probe: self._on_reached(connection, target, probe),
            lambda error: self._on_not_reached(connection, error),
        )

    def _on_reached(self, connection: Connection, target: Target, probe: Probe | None) -> None:
        self._task = None
        if probe is not None:
            connection = replace(connection, dialect=probe.dialect, version=probe.version)
            if self.book.find(connection.id) is not None:
                self.book.keep(connection)
        self._turn_to(connection, target, probe)

    def _on_not_reached(self, connection: Connection, error: ErrorInfo) -> None:
        self._task = None
        self._complain(connection, f"{connection.name} was not used.", error)

    def _turn_to(self, connection: Connection, target: Target, probe: Probe | None = None) -> None:
        if not self._bridge.is_remote:
            self._own = self._session.latest
        try:
            if connection.dialect is Dialect.INFERDECK:
                from app.clients.attached import attach

                attach(self._bridge, target)
            else:
                self._bridge.attach(_foreign(target, probe, connection.model))
        except InferdeckError as error:
            self._complain(connection, f"{connection.name} was not used.", describe(error))
            return
        log.info("the window uses %s at %s", connection.name, connection.base_url)
        self.current = connection
        self.changed.emit()
        self.notice.emit(
            Notice(
                NOTICE, f"The window uses {connection.name} now, at {connection.base_url}.",
                "Chats go there, and all views show that engine. The model of this machine was "
                "closed.", actions=(("Back to this machine", self.back),),
            )
        )  # fmt: skip

    def _on_opened(self, config: object, chosen: object) -> None:
        if not self._bridge.is_remote:
            self._own = self._session.current

    def _on_unloaded(self) -> None:
        if not self._bridge.is_remote and not self._is_away:
            self._own = None  # the user closed it

    def _on_link(self, link: LinkChanged | None) -> None:
        self._is_away = link is not None
        if link is None:
            self.current = None
            self.notice_gone.emit(NOTICE)
            QTimer.singleShot(0, self, self._open_own)
            self.changed.emit()

    def _open_own(self) -> None:
        """Back here with the model of before, unless another one is being opened."""
        own = self._own
        if own is not None and not self._is_away and self._bridge.state is EngineState.EMPTY:
            self._session.open(own.path, own.load_format, own.settings)

    def _complain(self, connection: Connection, title: str, error: ErrorInfo) -> None:
        actions = [("Change the connection", lambda: self.edit_wanted.emit(connection.id))]
        if self._bridge.is_remote:
            actions.append(("Back to this machine", self.back))
        self.notice.emit(error_notice(NOTICE, title, error, *actions))


def _foreign(target: Target, probe: Probe | None, model: str) -> ThreadFactory:
    def make(on_event: OnEvent) -> EngineThreadLike:
        from app.clients.engine import ForeignEngine

        return ForeignEngine(on_event, target, probe, model)

    return make


HERE, ATTACH = "engine.here", "engine.attach"
MENU, SECTION, SUBMENU = "Tune", "engines", "Engine in use"


def use_id(connection_id: str) -> str:
    """Of the command that turns to it."""
    return f"engine.use.{connection_id}"


class ConnectionCommands(QObject):
    """Keeps the commands as the book has the connections."""

    def __init__(self, switch: EngineSwitch, registry: CommandRegistry, parent: QObject) -> None:
        super().__init__(parent)
        self._switch, self._registry = switch, registry
        self._names: dict[str, str] = {}
        switch.book.changed.connect(self.renew)
        switch.changed.connect(registry.refresh)
        self.renew()

    def renew(self) -> None:
        wanted = {one.id: one for one in self._switch.book.connections}
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
        found = self._switch.book.find(connection_id)
        if found is not None and self._switch.used_id != connection_id:
            self._switch.use(found)
        self._registry.refresh()
