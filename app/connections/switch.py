"""Which engine the window uses: that of this machine, or one that runs elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import QObject, Signal

from app.connections.book import ConnectionBook
from app.connections.connection import Connection
from app.connections.target import Dialect, LinkChanged, LinkState, OnEvent, Probe, Target
from app.engine_bridge import EngineBridge, EngineThreadLike, ThreadFactory
from app.models.session import ModelSession
from app.panels.notices import Notice, error_notice
from app.settings_store import RecentModel
from app.tasks import Task, run_task
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
        self._wanted: Connection | None = None  # whose key or dialect is being asked for
        self._task: Task | None = None
        self._own: RecentModel | None = None  # what was open here before
        self.current: Connection | None = None
        """The engine elsewhere that the window uses; None: that of this machine."""
        book.keys.arrived.connect(self._on_key)
        bridge.link_changed.connect(self._on_link)

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
        if not self._bridge.is_remote:
            return
        self.notice_gone.emit(NOTICE)
        own, self._own, self.current = self._own, None, None
        self._bridge.detach()
        self.changed.emit()
        if own is not None:
            self._session.open(own.path, own.load_format, own.settings)

    # On the way --------------------------------------------------------------------------------

    def _on_key(self, name: str) -> None:
        connection = self._wanted
        if connection is None or connection.key_name != name:
            return
        target = connection.target(self.book.key(connection))
        if connection.dialect is Dialect.INFERDECK:
            self._turn_to(connection, target)
        else:  # also where it was recognised before: another server may listen there by now
            self._task = run_task(
                self,
                lambda: _probe(target),
                lambda probe: self._on_probe(connection, target, probe),
                lambda error: self._on_no_probe(connection, error),
            )

    def _on_probe(self, connection: Connection, target: Target, probe: Probe) -> None:
        self._task = None
        known = replace(connection, dialect=probe.dialect, version=probe.version)
        if self.book.find(connection.id) is not None:
            self.book.keep(known)
        self._turn_to(known, target, probe)

    def _on_no_probe(self, connection: Connection, error: ErrorInfo) -> None:
        self._task = self._wanted = None
        self._complain(connection, f"{connection.name} was not used.", error)

    def _turn_to(self, connection: Connection, target: Target, probe: Probe | None = None) -> None:
        self._wanted = None
        if not self._bridge.is_remote:
            self._own = self._session.latest
        try:
            if connection.dialect is Dialect.INFERDECK:
                from app.remote.attach import attach

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

    def _on_link(self, link: LinkChanged | None) -> None:
        """A line that is closed for good is said where it can be mended."""
        current = self.current
        if current is None:
            return
        if link is None:  # somebody else turned the window back
            self.current = None
            self.notice_gone.emit(NOTICE)
            self.changed.emit()
        elif link.state is LinkState.CLOSED and link.words:
            self._complain(current, f"{current.name} cannot be used.", ErrorInfo(link.words))

    def _complain(self, connection: Connection, title: str, error: ErrorInfo) -> None:
        actions = [("Change the connection", lambda: self.edit_wanted.emit(connection.id))]
        if self._bridge.is_remote:
            actions.append(("Back to this machine", self.back))
        self.notice.emit(error_notice(NOTICE, title, error, *actions))


def _probe(target: Target) -> Probe:
    """In a task."""
    from app.dialects.probe import probe

    return probe(target)


def _foreign(target: Target, probe: Probe | None, model: str) -> ThreadFactory:
    def make(on_event: OnEvent) -> EngineThreadLike:
        from app.dialects.engine import ForeignEngine

        return ForeignEngine(on_event, target, probe, model)

    return make
