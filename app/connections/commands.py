"""What engines elsewhere add to the menus and the palette: one command for each that is kept."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject

from app.commands import Command, CommandRegistry
from app.connections.connection import Connection
from app.connections.switch import EngineSwitch

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
