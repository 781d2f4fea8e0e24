"""From a report to the chat: the same prompt, answered by both of its precisions."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app.commands import CommandRegistry
from app.engine_bridge import EngineBridge
from app.models.session import ModelSession
from app.quality.store import StoredReport
from app.quantize.page import QuantizePage

COMMAND = "chat.compare"


class CompareInChat(QObject):
    """Offers it where the window has the command, for reports of one model at two precisions: the
    comparison switches the model that is loaded. Loads it first where another one is."""

    def __init__(
        self,
        page: QuantizePage,
        commands: CommandRegistry,
        session: ModelSession,
        bridge: EngineBridge,
    ) -> None:
        super().__init__()
        self._commands, self._session, self._bridge = commands, session, bridge
        self._awaited = ""  # the model that is being loaded for it
        page.report.can_compare = any(command.id == COMMAND for command in commands)
        page.compare_in_chat.connect(self.compare)
        bridge.loaded.connect(lambda event: self._on_loaded(event.config.model))
        bridge.load_failed.connect(lambda event: self._forget())

    def compare(self, stored: StoredReport) -> None:
        path = stored.report.candidate.path
        current = self._session.current
        if self._bridge.is_ready and current is not None and current.path == path:
            self._commands.run(COMMAND)
        else:
            self._awaited = path
            self._session.open(path)

    def _on_loaded(self, path: str) -> None:
        awaited, self._awaited = self._awaited, ""
        if awaited and awaited == path:
            self._commands.run(COMMAND)

    def _forget(self) -> None:
        self._awaited = ""
