"""`ManagedNotices`: says why an engine that this window runs ended, with the ways on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject, Signal

from app.clients.connection import Connection
from app.managed.launch import Launch
from app.window.notices import Notice, error_notice
from engine.errors import ErrorInfo


class ManagedNotices(QObject):
    """`start_wanted`, `log_wanted`, `edit_wanted`: of a connection id; `apply_wanted`: with the
    settings that worked last."""

    notice = Signal(object)  # Notice
    notice_gone = Signal(str)
    start_wanted = Signal(str)
    apply_wanted = Signal(str, object)  # Launch
    log_wanted = Signal(str)
    edit_wanted = Signal(str)

    def clear(self, connection_id: str) -> None:
        self.notice_gone.emit(_key(connection_id))

    def ended(self, connection: Connection, error: ErrorInfo, better: Launch | None) -> None:
        """better: settings that worked, where those that were tried are others."""
        again = ("Restart", partial(self.start_wanted.emit, connection.id))
        if better is not None:
            use = partial(self.apply_wanted.emit, connection.id, better)
            again = ("Use previous settings", use)
        self.notice.emit(self._of(connection, f"{connection.name} stopped.", error, again))

    def kept(self, connection: Connection, error: ErrorInfo) -> None:
        """Its new settings failed beside it."""
        title = f"{connection.name} continues with its previous settings."
        self.notice.emit(self._of(connection, title, error))

    def _of(
        self, connection: Connection, title: str, error: ErrorInfo,
        *first: tuple[str, Callable[[], object]],
    ) -> Notice:  # fmt: skip
        known = connection.id
        return error_notice(
            _key(known), title, error, *first,
            ("Show log", partial(self.log_wanted.emit, known)),
            ("Edit", partial(self.edit_wanted.emit, known)),
        )  # fmt: skip


def _key(connection_id: str) -> str:
    return f"managed-{connection_id}"
